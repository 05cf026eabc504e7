"""Alarms that are only noted: the first ones each by itself, all others summed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Fields = dict[str, Any]
REPORTED_ALONE: Final = 3
SUMMED_UP_STEPS: Final = 500


class AlarmNotes:
    """Reports alarms; of noted ones at most `REPORTED_ALONE`, and one sum in `SUMMED_UP_STEPS` steps.

    Args:
        emit: called with the fields of a ledger event.
    """

    def __init__(self, emit: Callable[[Fields], object]) -> None:
        self._emit = emit
        self._num_emitted = 0
        self._newest_step = 0
        self._held: list[Fields] = []

    def __call__(self, alarm: Fields) -> None:
        """Reported at once where something follows from it."""
        if alarm["action"] != "note":
            self._emit(alarm)
            return
        if alarm["step"] - self._newest_step >= SUMMED_UP_STEPS:
            self._num_emitted = 0  # after so long a silence it is news again
        self._newest_step = alarm["step"]
        self._num_emitted += 1
        if self._num_emitted <= REPORTED_ALONE:
            self._emit(alarm)
        else:
            self._held.append(alarm)

    def at_step(self, step: int) -> None:
        """So many steps are done."""
        if self._held and step - self._held[0]["step"] >= SUMMED_UP_STEPS:
            self.finish()

    def finish(self) -> None:
        """Report what was held back."""
        if not self._held:
            return
        # The highest loss stands for all: it is what a person would look for first.
        worst = max(self._held, key=lambda alarm: float(alarm["loss"]))
        first, last = self._held[0]["step"], self._held[-1]["step"]
        number = len(self._held)
        steps = f"steps {first} to {last}" if last > first else f"step {first}"
        what = f"{steps}: {number} more alarms ({worst['alarm']}), the highest loss {float(worst['loss']):.4g} at step "
        self._emit({**worst, "count": number, "first_step": first, "what": f"{what}{worst['step']}: note."})
        self._held = []
