"""Prefect's ephemeral server is this process's child, but would outlive its kill. A reaper sees to it that it does not.

The reaper holds the other end of a pipe: however this process ends, the pipe does too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

SERVER = b"prefect.server.api.server:create_app"
STOP_WITHIN_S = 3.0

_reapers: dict[int, subprocess.Popen[bytes]] = {}
"""By the server's pid; kept for as long as this process lives, for a dropped one would close its pipe."""


def end_server_with_us() -> None:
    """Tie every ephemeral server that this process has started to this process's life."""
    from training.launch.process_tree import descendants

    for pid in descendants(os.getpid()):
        if pid not in _reapers and _is_server(pid):
            # By path and isolated: a user's project may have a `flows/` of its own.
            _reapers[pid] = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(pid)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return SERVER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def reap(pid: int) -> None:
    """Wait for the pipe's end, then end the server; at once when it has gone by itself."""
    with contextlib.suppress(ProcessLookupError):
        server = os.pidfd_open(pid)
        select.select([sys.stdin, server], [], [])
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(server, number)
            if select.select([server], [], [], STOP_WITHIN_S)[0]:
                return


if __name__ == "__main__":
    reap(int(sys.argv[1]))
