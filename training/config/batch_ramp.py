"""A batch that begins small and doubles up to `global_batch_sequences`, and where in the sample order each one lies.

Windows are numbered as everywhere (`headway.training.guards.plan`): one global batch each, those included that a guard
leaves out. A table of windows and rows says where any of them begins, so nothing is counted while a run trains.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen


class BatchRampSpec(Frozen):
    from_sequences: int = Field(
        gt=0,
        description="Rows of the first optimizer steps; each phase has twice as many as the one before, and the last "
        "has `global_batch_sequences`.",
    )
    by: Literal["schedule", "noise_scale"] = Field(
        default="schedule",
        description="What decides when the batch doubles. `schedule`: the steps of `at_steps`. `noise_scale`: the "
        "measured gradient noise scale, in mode `exact`.",
    )
    at_steps: tuple[Annotated[int, Field(gt=0)], ...] = Field(
        default=(),
        exclude_if=lambda steps: not steps,
        description="Of `schedule`: after how many steps the batch doubles, one number for each doubling, such as "
        "`[200, 600]`. Batches that a guard leaves out count.",
    )
    factor: float = Field(
        default=2.0,
        gt=0,
        description="Of `noise_scale`: the batch doubles once the scale is at least so many times the batch. 2: no "
        "batch is larger than the scale that was measured before.",
    )
    min_measurements: int = Field(
        default=5,
        gt=0,
        description="Of `noise_scale`: how often a batch is measured at least before it doubles; every eighth step is.",
    )

    @model_validator(mode="after")
    def _keys_belong_to_the_kind(self) -> Self:
        # Defaults do not count: a configuration that is written out and read again has them.
        fields = type(self).model_fields
        told = [name for name in ("factor", "min_measurements") if getattr(self, name) != fields[name].default]
        if self.by == "schedule" and told:
            raise ValueError(f"{' and '.join(told)}: of by: noise_scale; a schedule doubles at at_steps")
        if self.by == "noise_scale" and self.at_steps:
            raise ValueError("at_steps: of by: schedule; noise_scale decides by what is measured")
        if any(first >= second for first, second in pairwise(self.at_steps)):
            raise ValueError(f"at_steps {list(self.at_steps)} must ascend, each step once")
        return self

    def problem(self, *, global_batch: int, micro_batch: int) -> str | None:
        """Why it does not lead to this batch; None where it does."""
        rows, num_doublings = self.from_sequences, 0
        while rows < global_batch:
            rows, num_doublings = 2 * rows, num_doublings + 1
        if rows != global_batch or not num_doublings:
            return (
                f"from_sequences {self.from_sequences} must come to global_batch_sequences {global_batch} by doubling, "
                "once at least"
            )
        if self.from_sequences % micro_batch:
            return f"from_sequences {self.from_sequences} must be whole micro-batches of {micro_batch}"
        if self.by == "schedule" and len(self.at_steps) != num_doublings:
            return (
                f"at_steps must name {num_doublings} steps, for {self.from_sequences} to {global_batch} rows are so "
                f"many doublings, and names {len(self.at_steps)}"
            )
        if self.by == "noise_scale" and self.from_sequences == micro_batch:
            return (
                f"from_sequences {self.from_sequences} is one micro-batch, whose noise cannot be measured: by: "
                f"noise_scale begins with {2 * micro_batch} rows at least"
            )
        return None


class BatchPhase(NamedTuple):
    """Windows of one size, up to the next phase."""

    first_window: int
    first_row: int
    """Position in the sample order at which `first_window` begins."""
    rows: int
    """Of each of its windows."""


@dataclass(frozen=True, slots=True)
class BatchPhases:
    """Ascending in windows; the first begins at window 0 and row 0, and each has more rows than the one before."""

    phases: tuple[BatchPhase, ...]

    @classmethod
    def of(cls, rows: int) -> BatchPhases:
        """Of one size alone."""
        return cls((BatchPhase(0, 0, rows),))

    def doubled_at(self, *windows: int) -> BatchPhases:
        """With twice the rows from each of these windows on, which ascend and lie behind the last phase's first."""
        phases = list(self.phases)
        for window in windows:
            phases.append(BatchPhase(window, _row(phases[-1], window), 2 * phases[-1].rows))
        return BatchPhases(tuple(phases))

    def at(self, window: int) -> BatchPhase:
        """The phase that a window belongs to."""
        return self.phases[bisect_right(self.phases, window, key=lambda phase: phase.first_window) - 1]

    def row(self, window: int) -> int:
        """The position in the sample order at which a window begins."""
        return _row(self.at(window), window)

    def end_of(self, phase: BatchPhase) -> int | None:
        """The window that the next phase begins with; None of the last one."""
        place = self.phases.index(phase) + 1
        return self.phases[place].first_window if place < len(self.phases) else None

    def windows_nearest(self, rows: float) -> int:
        """How many whole windows from the first on come nearest to so many rows."""
        phase = self.phases[bisect_right(self.phases, rows, key=lambda phase: phase.first_row) - 1]
        return phase.first_window + round((rows - phase.first_row) / phase.rows)

    @property
    def last_rows(self) -> int:
        return self.phases[-1].rows


def _row(phase: BatchPhase, window: int) -> int:
    return phase.first_row + (window - phase.first_window) * phase.rows
