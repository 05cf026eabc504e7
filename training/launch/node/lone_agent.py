"""The agent of a gang of one rank: what torchrun would do for it, without the seconds that importing torch takes.

    python .../lone_agent.py LOG_DIR RUN_ID MODULE ARGUMENTS...

Standard library only, and started by its path: a rank imports frozen code, which may be older than this file. The rank
finds torchrun's environment and writes where torchrun's ranks do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def environment(run_id: str, endpoint: str) -> dict[str, str]:
    """What torchrun tells the one rank of its only node; a process group of one needs an address too."""
    first = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0")
    one = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": endpoint.rpartition(":")[2], "TORCHELASTIC_RUN_ID": run_id}
    # Started by no rendezvous, so the address is loopback and the numbers are those of a world of one.
    return {**first, **one, **place, "ROLE_NAME": "default", "TORCHELASTIC_MAX_RESTARTS": "0"}


def _no_link(path: str, flags: int) -> int:
    """A log's name can be guessed: another user who may write there could put a link in its place."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def main(log_dir: str, run_id: str, module: str, *arguments: str) -> int:
    """Start the rank, pass SIGTERM on to it, and wait.

    Returns:
        0 when it ended well, 1 otherwise, as torchrun does; its marker says more.
    """
    logs = Path(log_dir) / run_id / "attempt_0" / "0"
    logs.mkdir(parents=True, exist_ok=True)
    asked: list[int] = []
    # Before the rank is there: what comes meanwhile is passed on afterwards.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: asked.append(number))
    out_log, err_log = logs / "stdout.log", logs / "stderr.log"
    with open(out_log, "ab", opener=_no_link) as out, open(err_log, "ab", opener=_no_link) as err:
        given = {**os.environ, **environment(run_id, os.environ["PET_RDZV_ENDPOINT"])}
        if (fork_rank := globals().get("fork_rank")) is not None:  # of the fork server, which this agent came from
            pid = fork_rank(module, arguments, given, out.fileno(), err.fileno())
        else:
            # `-P` keeps the working folder off the import path, where a user's modules could shadow others.
            command = (sys.executable, "-P", "-m", module, *arguments)
            pid = subprocess.Popen(command, env=given, stdin=subprocess.DEVNULL, stdout=out, stderr=err).pid
    # Not waited for before its number is used for the last time, so that it is the rank's.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    for early in asked:
        os.kill(pid, early)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return int(os.waitpid(pid, 0)[1] != 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
