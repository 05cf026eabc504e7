"""Processes and who owns them, on Linux: death signals, descendants, and the sweep by token.

Standard library only. Sources: prctl(2), pidfd_open(2), proc(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.data_contracts.store.installation import HOME

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
ALREADY_DEAD = "ZX"
HEADWAY_HOME = str(HOME)

# Loaded before any fork: in the child of a threaded process loading a library may deadlock.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when the parent *thread* that made it ends.

    The parent may already be gone: callers compare `os.getppid()` afterwards.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def has_ended(pid: int, within_s: float) -> bool:
    """Wait for the end of a child, which stays to be waited for."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(1000 * within_s))
    finally:
        os.close(descriptor)


def end_in_order(process: subprocess.Popen[Any], within_s: float, number: signal.Signals = signal.SIGTERM) -> None:
    """Ask a command that we started to end, and end it by force once it has had so long. Returns when it is over."""
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def beside_headway(search_path: Sequence[str]) -> dict[str, str]:
    """Environment of a child Python in which a user's code lies on the path, and never in place of Headway's own.

    Args:
        search_path: folders where that code may lie; they may hold a `training` or `tasks` of theirs.
    """
    places = (HEADWAY_HOME, *filter(None, sys.path), *search_path)
    return {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _pids() -> Iterator[int]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


class _Stat(NamedTuple):
    state: str
    parent: int
    cpu_ticks: int


def _stat(pid: int) -> _Stat | None:
    """What the kernel says of a process, or None when it is gone."""
    try:
        # The name, in brackets, may hold blanks and brackets itself.
        after_name = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(after_name[0], int(after_name[1]), int(after_name[11]) + int(after_name[12]))
    except (OSError, IndexError):
        return None


def process_state(pid: int) -> str:
    """The kernel's state letter (`R`, `S`, `D`, `T`, `Z`), or `X` when the process is gone."""
    stat = _stat(pid)
    return "X" if stat is None else stat.state


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, all its threads together; 0 when it is gone."""
    stat = _stat(pid)
    return 0.0 if stat is None else stat.cpu_ticks / os.sysconf("SC_CLK_TCK")


def is_child(pid: int, *, of: Sequence[int]) -> bool:
    """Whether a process lives, and is a child of one of these."""
    stat = _stat(pid)
    return stat is not None and stat.parent in of and stat.state not in ALREADY_DEAD


def descendants(root: int) -> list[int]:
    """Living processes below `root`, through dead parents in between too."""
    # One pass over /proc, then a walk in memory: processes that move while it lasts are found by the next call.
    children: dict[int, list[tuple[int, str]]] = {}
    for pid in _pids():
        if (stat := _stat(pid)) is not None:
            children.setdefault(stat.parent, []).append((pid, stat.state))
    found, unseen = [], [root]
    while unseen:
        for pid, state in children.get(unseen.pop(), ()):
            unseen.append(pid)
            if state not in ALREADY_DEAD:
                found.append(pid)
    return found


def processes_with(variable: str, value: str) -> list[int]:
    """Living processes of this user that were started with `variable=value` in their environment."""
    wanted = f"{variable}={value}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and _was_started_with(pid, wanted)]


def _was_started_with(pid: int, wanted: bytes) -> bool:
    # Readable for the same user alone, which is why only this user's processes are found.
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    # It may have ended between the two looks, and a zombie needs no kill.
    return wanted in environment.split(b"\0") and process_state(pid) not in ALREADY_DEAD


def kill_if(pid: int, still_meant: Callable[[], bool]) -> bool:
    """SIGKILL `pid` unless the number has passed to another process meanwhile."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # A pidfd is opened first: if the process still matches, the signal cannot reach another that took its number.
        if not still_meant():
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def kill_descendants() -> set[int]:
    """SIGKILL whoever lives below this process, once.

    Returns:
        Those killed.
    """
    me = os.getpid()
    # Once more before each kill: what was a descendant when the list was made may have ended, and its number be reused.
    return {pid for pid in descendants(me) if kill_if(pid, lambda pid=pid: pid in descendants(me))}  # type: ignore[misc]


def sweep(variable: str, value: str, *, patience_s: float = 5.0) -> list[int]:
    """Kill every process started with `variable=value`, until none is left or patience ends.

    Returns:
        The processes killed.
    """
    wanted = f"{variable}={value}".encode()
    killed: list[int] = []
    deadline = time.monotonic() + patience_s
    # Until two looks in a row find nobody: a process that forks and ends during one look is dead when it is looked at,
    # and its child is not on the list yet.
    num_empty = 0
    while time.monotonic() < deadline and num_empty < 2:
        left = processes_with(variable, value)
        num_empty = 0 if left else num_empty + 1
        killed += [pid for pid in left if kill_if(pid, lambda pid=pid: _was_started_with(pid, wanted))]  # type: ignore[misc]
        if left:
            time.sleep(0.02)
    return sorted(set(killed))


def sweep_later(variable: str, value: str, *, patience_s: float, sweep_s: float = 5.0) -> list[int]:
    """The same for what is ending by itself, once it has had so long."""
    deadline = time.monotonic() + patience_s
    # It may be keeping a checkpoint, and a kill would lose the steps since the last one.
    while processes_with(variable, value) and time.monotonic() < deadline:
        time.sleep(0.05)
    return sweep(variable, value, patience_s=sweep_s)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sweep_later(sys.argv[1], sys.argv[2], patience_s=float(sys.argv[3]), sweep_s=float(sys.argv[4]))
