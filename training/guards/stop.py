"""When a rank wants its run to keep a checkpoint and end; what any rank wants at a step is done by all of them."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.data_contracts.store.errors import StopReason
from headway.training.launch.base.stop_request import StopRequest

MIN_MARGIN_S = 1.0


class StopConditions:
    """Asked once a step, at its end, and again once it is made: a guard may leave it out, or go back.

    Args:
        is_requested: whether somebody asked for a stop, such as by SIGTERM.
        bound: until when this attempt may go on.
        may_double: whether a step may come that takes twice as long as any before.
        clock: Unix time in seconds.
    """

    reason: StopReason | None = None
    """Why this rank wants to stop; None while it does not, and when only another one does."""

    def __init__(
        self,
        is_requested: Callable[[], bool],
        bound: StopRequest,
        *,
        may_double: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._is_requested, self._bound, self._may_double, self._clock = is_requested, bound, may_double, clock
        self._last_s, self._longest_step_s, self._longest_save_s = clock(), 0.0, 0.0

    def begin(self) -> None:
        """Called when steps begin: what came before was none."""
        self._last_s = self._clock()

    def saved(self, duration_s: float) -> None:
        """Called with what a checkpoint took to become durable: so long before the end it must begin."""
        self._longest_save_s = max(self._longest_save_s, duration_s)
        self._last_s = self._clock()

    def __call__(self) -> bool:
        """Whether the step that ends now is to be the last, for another reason than its number."""
        now_s = self._clock()
        self._longest_step_s = max(self._longest_step_s, now_s - self._last_s)
        self._look(now_s)
        return self.reason is not None

    def in_between(self) -> bool:
        """The same in the midst of other work, which is no step, however long it takes."""
        self._look(self._clock())
        return self.reason is not None

    def _look(self, now_s: float) -> None:
        self._last_s = now_s
        # One more step, and twice the slowest save so far: a disk may be slower at the end than it was.
        step_s = (2 if self._may_double() else 1) * self._longest_step_s
        margin_s = MIN_MARGIN_S + step_s + 2 * self._longest_save_s
        # The request first: where both hold, a person's wish is the reason that is shown.
        if self._is_requested():
            self.reason = "requested"
        elif self._bound.is_due(now_s + margin_s):
            self.reason = self._bound.reason

    def ends_with(self, step: int) -> bool:
        """Whether no step is to follow the `step`th, which was made; the same on all ranks."""
        if self.is_reached(step) and self.reason is None:
            self.reason = "step reached"
        return self.is_reached(step)

    def is_reached(self, step: int) -> bool:
        """Whether no step is left to do when so many are done; the same on all ranks."""
        return self._bound.at_step is not None and step >= self._bound.at_step
