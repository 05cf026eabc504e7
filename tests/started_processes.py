"""Which processes this one starts, for `tests/tiers.py`: noted where they begin.

A hook of `sys.addaudithook` would be told as well, and of each file that is opened and each module that is imported: a
twentieth of all that the tests cost.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any

STARTS = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")
"""Of `os`."""

started: list[str] = []
"""What was started since whoever asks last emptied it."""


def note(how: str, what: object = "") -> None:
    started.append(f"{how} {what}".rstrip())


def listen() -> None:
    """From now on, once for a process and its forks."""
    for name in STARTS:
        setattr(os, name, _noting(f"os.{name}", getattr(os, name)))
    begin = subprocess.Popen.__init__

    @functools.wraps(begin)
    def noted(self: Any, args: Any, *more: Any, **options: Any) -> None:
        what = str(args if isinstance(args, str | bytes | os.PathLike) else next(iter(args)))
        if what != "uname":  # which `platform` asks once a process, whoever comes first
            note("subprocess.Popen", what)
        begin(self, args, *more, **options)

    subprocess.Popen.__init__ = noted  # type: ignore[method-assign]


def _noting(how: str, start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def noted(*given: Any, **options: Any) -> Any:
        note(how, *given[:1])
        return start(*given, **options)

    return noted
