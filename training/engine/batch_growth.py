"""When the batch of a run grows: by the configuration's schedule, or by the gradient noise scale that was measured.

It sees only numbers that are equal on all ranks, as a guard does, and decides on nothing else. What it decided is part
of every checkpoint; a run that resumed from one before the decision meets the same numbers, and decides the same again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.training_spec import TrainingSpec


class BatchGrowth:
    """The sizes of a run's batches, as far as they are known."""

    def __init__(self, spec: TrainingSpec) -> None:
        self._final_rows = spec.global_batch_sequences
        ramp = spec.batch_ramp
        self._by_noise = ramp if ramp is not None and ramp.by == "noise_scale" else None
        self.phases = spec.batch_phases
        self._rows = spec.first_batch_sequences
        self.restart()

    def restart(self) -> None:
        """Forget what was measured: the run starts from its first step. What has been decided stays."""
        self._num_measured, self._measured_rows = 0, 0

    @property
    def may_grow(self) -> bool:
        """Whether a later batch may be larger than that of the last step that was taken in."""
        return self._rows < self._final_rows

    def take(self, window: int, *, is_measured: bool, noise_scale: float | None) -> None:
        """Take in a step that was trained on this window. The batch may grow from the next window on.

        Args:
            is_measured: whether the step moved the noise scale.
            noise_scale: in rows, after the step.
        """
        spec, rows = self._by_noise, self.phases.at(window).rows
        self._rows = rows
        if spec is None or not is_measured:
            return
        # Of each size anew: the mean still looks back at steps before, and is to say something of this one.
        self._num_measured = self._num_measured + 1 if rows == self._measured_rows else 1
        self._measured_rows = rows
        # After a roll-back the steps lie before a decision that stays.
        is_open = rows == self.phases.last_rows < self._final_rows
        is_large = noise_scale is not None and noise_scale >= spec.factor * rows
        if is_open and is_large and self._num_measured >= spec.min_measurements:
            self.phases = self.phases.doubled_at(window + 1)

    def scalars(self) -> dict[str, str]:
        """For a checkpoint; nothing where the configuration decides it all."""
        if self._by_noise is None:
            return {}
        state = {
            "windows": [phase.first_window for phase in self.phases.phases[1:]],
            "num_measured": self._num_measured,
            "measured_rows": self._measured_rows,
        }
        return {"batch_growth": json.dumps(state, separators=(",", ":"))}

    def load(self, scalars: Mapping[str, float | int | str]) -> None:
        """Take over what `scalars()` gave. What has been decided since stays decided.

        Raises:
            IntegrityError: not such a state.
        """
        if self._by_noise is None:
            return
        try:
            state = json.loads(str(scalars["batch_growth"]))
            windows = [int(window) for window in state["windows"]]
            self._num_measured, self._measured_rows = int(state["num_measured"]), int(state["measured_rows"])
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"the sizes of its batches cannot be read ({error}).", where="checkpoint") from error
        # Windows that a guard has left out since are numbered by the sizes that were decided then.
        known = [phase.first_window for phase in self.phases.phases[1:]]
        self.phases = self.phases.doubled_at(*windows[len(known) :])
