"""How a test waits for what other threads and processes do: until it is so, or too late on the busiest machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 300.0
"""Of a wait that should be a matter of seconds, on a machine that is ten times too busy."""

T = TypeVar("T")
PAUSES = 5
"""How many times as long as a look the pause behind it is: who waits takes a sixth of a core at most."""


def wait_until(
    condition: Callable[[], T], within_s: float = DEADLINE_S, what: str = "it", *, every_s: float = 0.005
) -> T:
    """The condition's first true value; fails the test when there is none.

    A condition that is costly to look at is looked at seldom: what is waited for needs the processor as well.

    Args:
        every_s: the least time between two looks, for one that costs another process more than it does us.
    """
    started_s = time.monotonic()
    while True:
        looked_s = time.monotonic()
        if value := condition():
            return value
        now_s = time.monotonic()
        assert now_s - started_s < within_s, f"{what}: not within {within_s:g} s"
        time.sleep(max(every_s, PAUSES * (now_s - looked_s)))
