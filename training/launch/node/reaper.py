"""The reaper cleans up after an owner that no longer can: whatever else failed, nothing outlives the owner for long.

    owner ──pidfd──► reaper ──token──► every process that carries it

A server has nobody else to end it. Ranks have guards; but a guard may be halted, or killed with its owner, and what
hangs on it, and what ranks started for themselves, still carries the token in its environment. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from headway.training.launch.base.process_tree import HEADWAY_HOME, processes_with, send_signal, sweep_later

SETTLE_S = 0.3
"""For what the owner had just started to carry the token visibly."""
SWEEP_S = 60.0


@contextlib.contextmanager
def reaped(
    variable: str,
    value: str,
    patience_s: float,
    *,
    terminate: bool = False,
    sweep_remote: Sequence[Sequence[str]] = (),
) -> Iterator[None]:
    """Should this process end within the body, what was started with `variable=value` is killed `patience_s` later.

    Args:
        terminate: whether the reaper asks for an orderly end first, where nobody else does.
        sweep_remote: commands that do the same on other hosts.
    """
    commands = json.dumps([list(command) for command in sweep_remote])
    order = (commands, *(("terminate",) if terminate else ()))
    # A process, not a thread: it has to outlive the owner that it watches.
    reaper = subprocess.Popen(
        (
            sys.executable,
            "-P",
            "-m",
            "headway.training.launch.node.reaper",
            str(os.getpid()),
            variable,
            value,
            str(patience_s),
            *order,
        ),
        stdin=subprocess.DEVNULL,
        # A pipe that nobody reads would kill or block the reaper just when it is needed.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Without an outer run's token: that run's reaper must leave ours alone.
        env={name: value for name, value in os.environ.items() if name != variable}
        | {"PYTHONPATH": HEADWAY_HOME, "PYTHONSAFEPATH": "1"},
        start_new_session=True,
    )
    try:
        yield
    finally:
        # The owner ended in order and has cleaned up itself; a reaper that is kept would watch a reused pid later.
        reaper.kill()
        reaper.wait()


def reap(
    owner_pid: int,
    variable: str,
    value: str,
    patience_s: float,
    *,
    terminate: bool,
    sweep_remote: Sequence[Sequence[str]] = (),
) -> None:
    """Wait for the owner, which is this process's parent, to end; once patience is over, kill until nothing is left."""
    with contextlib.suppress(ProcessLookupError):
        owner = os.pidfd_open(owner_pid)
        # The owner may have died before the pidfd was opened; then its number may belong to someone else.
        if os.getppid() == owner_pid:
            select.select([owner], [], [])
    time.sleep(SETTLE_S)
    for pid in processes_with(variable, value) if terminate else ():
        send_signal(pid, signal.SIGTERM)
    # Their own guards end them first, with time to keep a checkpoint; only what is left is killed.
    sweep_later(variable, value, patience_s=patience_s, sweep_s=SWEEP_S)
    with contextlib.suppress(OSError):
        # All are started before any is waited for: one host that is out of reach must not delay the others.
        for command in [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in sweep_remote]:
            command.wait()


if __name__ == "__main__":
    reap(
        int(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        float(sys.argv[4]),
        terminate="terminate" in sys.argv[6:],
        sweep_remote=json.loads(sys.argv[5]),
    )
