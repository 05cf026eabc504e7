"""Processes by number and beginning, so that whoever has a dead one's number later is not taken for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from headway.training.launch.base.process_tree import process_state, processes_with


def known_processes(variable: str, value: str) -> dict[int, str]:
    """Those that were started with `variable=value`: when each began, by its number."""
    return with_beginnings(processes_with(variable, value))


def with_beginnings(pids: Iterable[int]) -> dict[int, str]:
    """When each began; one that has ended since it was found is not among them."""
    return {pid: started for pid in pids if (started := start_of(pid))}


def is_gone(pid: int, started: str) -> bool:
    return start_of(pid) != started


def start_of(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty when it is gone or dead."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if words[0] in "ZX" else words[19]
    return ""


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def describe(pid: int) -> str:
    """In one line, for whoever asks why it is still there."""
    words = command_of(pid).replace(b"\0", b" ").decode(errors="replace").strip()
    return f"{pid} ({process_state(pid)}): {words[:200]}"
