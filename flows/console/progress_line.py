"""How far a command has come: one line on a terminal, written over and over; nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headway.data_contracts.store import plain_text

SHOWN_EVERY_S = 0.2


class ProgressLine:
    """Called with what is done and what there is.

    Args:
        words: makes the line of both.
    """

    def __init__(self, words: Callable[[int, int], str]) -> None:
        self._words, self._is_shown, self._shown_s = words, sys.stderr.isatty(), 0.0

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if self._is_shown and (now_s - self._shown_s >= SHOWN_EVERY_S or done == total):
            sys.stderr.write(f"\r\x1b[K{plain_text.one_line(f'headway: {self._words(done, total)}')}")
            sys.stderr.flush()
            self._shown_s = now_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._shown_s:
            sys.stderr.write("\n")
