"""When a rank wants its run to keep a checkpoint and end; what any rank wants at a step is done by all of them.

Beside SIGTERM, whoever launches a gang may set bounds by environment variables: they change no bit of what is learnt,
so they are no part of the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from data_contracts.errors import ConfigError

STOP_AT_UNIX_S = "HEADWAY_STOP_AT_UNIX_S"
"""The window's end: a checkpoint is to be durable by then."""
STOP_AFTER_S = "HEADWAY_STOP_AFTER_S"
"""Seconds of training in this attempt."""
STOP_AFTER_STEPS = "HEADWAY_STOP_AFTER_STEPS"
"""Steps of this attempt."""

LEAST_MARGIN_S = 1.0


class StopConditions:
    """Asked once a step, at its end.

    Args:
        is_asked: whether somebody asked for a stop, such as by SIGTERM.
        environment: where the bounds are.
        clock: Unix time in seconds.

    Raises:
        ConfigError: a bound is no number.
    """

    def __init__(
        self,
        is_asked: Callable[[], bool],
        environment: Mapping[str, str] = os.environ,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_asked, self._clock = is_asked, clock
        began_s = clock()
        window_end_s = _number(environment, STOP_AT_UNIX_S)
        training_end_s = began_s + _number(environment, STOP_AFTER_S)
        self._end_s, self._steps_left = min(window_end_s, training_end_s), _number(environment, STOP_AFTER_STEPS)
        self._last_s, self._longest_step_s, self._longest_save_s = began_s, 0.0, 0.0

    def saved(self, duration_s: float) -> None:
        """Told how long a checkpoint took to become durable: so long before the end it must begin."""
        self._longest_save_s = max(self._longest_save_s, duration_s)
        self._last_s = self._clock()

    def __call__(self) -> bool:
        """Whether the step that ends now is to be the last."""
        now_s = self._clock()
        self._longest_step_s = max(self._longest_step_s, now_s - self._last_s)
        self._last_s = now_s
        self._steps_left -= 1
        margin_s = LEAST_MARGIN_S + self._longest_step_s + 2 * self._longest_save_s
        return self._is_asked() or self._steps_left <= 0 or now_s + margin_s >= self._end_s


def _number(environment: Mapping[str, str], name: str) -> float:
    value = environment.get(name, "inf")
    try:
        return float(value)
    except ValueError as error:
        raise ConfigError(f"{value!r} is not a number.", where=name) from error
