"""A keeper starts one server and owns all its processes: when the command goes, however it goes, so do they.

    command ──lifeline (pipe)──► keeper ──► server ──► its workers

The lifeline ends when the command is done or is killed. What the server started for itself comes to the keeper as an
orphan, wherever it hid. Standard library only, so that it stands at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from training.launch.process_tree import adopt_orphans, descendants, die_with_parent, kill_if, send_signal

LIFELINE = 0
STOP_WITHIN_S = 5.0
TICK_S = 0.1


def keep(command: list[str]) -> int:
    """Run the server until it ends, the lifeline does, or a signal comes; leave nobody behind.

    Returns:
        The server's exit code; 0 when it was told to end.
    """
    adopt_orphans()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: told.append(number))
    keeper = os.getpid()

    def tie_to_keeper() -> None:
        die_with_parent()
        if os.getppid() != keeper:
            os._exit(1)

    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=tie_to_keeper)
    while server.poll() is None and not told and not _lifeline_ended(TICK_S):
        pass
    code = server.poll()
    send_signal(server.pid, signal.SIGTERM)
    _end_descendants(server)
    return 0 if code is None else code


def _lifeline_ended(wait_s: float) -> bool:
    readable, _, _ = select.select([LIFELINE], [], [], wait_s)
    return bool(readable) and not os.read(LIFELINE, 64)


def _end_descendants(server: subprocess.Popen[bytes]) -> None:
    """Wait for an orderly end, then kill; orphans pass to the keeper while their parents end, so look again."""
    keeper, deadline = os.getpid(), time.monotonic() + STOP_WITHIN_S
    while (server.poll() is None or descendants(keeper)) and time.monotonic() < deadline:
        time.sleep(TICK_S / 2)
    while left := descendants(keeper):
        for pid in left:
            kill_if(pid, lambda pid=pid: pid in descendants(keeper))  # type: ignore[misc]
        time.sleep(TICK_S / 5)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
