"""When a run looks at rows that neither train nor evaluate, and what follows: the end of a run, or which checkpoint is
its model.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.durations import Seconds

UNKNOWN_PACE = 10
"""Validations of a run with `every_s` of which nobody knows beforehand what a step takes."""
Fraction = Annotated[float, Field(gt=0, le=1)]


class ValidationSpec(Frozen):
    every_steps: int | None = Field(default=None, gt=0, description="Steps between two validations.")
    every_s: Seconds | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        exclude_if=lambda every_s: every_s is None,
        description="In place of `every_steps`: about so many seconds between two validations. How many steps these "
        "are is settled once, before the run begins, by what a step of this pipeline's last run took; where none is on "
        "record it is a tenth of the run.",
    )
    at_fractions: tuple[Fraction, ...] = Field(
        default=(), description="In place of `every_steps`: shares of the run's steps, such as `[0.1, 0.5, 1]`."
    )
    max_rows: int | None = Field(
        default=None, gt=0, description="Rows of a validation at most, spread over the split; empty: all of it."
    )
    metric: str | None = Field(
        default=None, min_length=1, description="The figure to go by; empty: the one that decides who is champion."
    )
    patience: int | None = Field(
        default=None,
        gt=0,
        description="The run ends after so many validations in a row that were no better; empty: never.",
    )
    min_delta: float = Field(
        default=0.0,
        ge=0,
        le=1e15,
        allow_inf_nan=False,
        description="A validation is better only by more than this.",
    )
    keep_best: bool = Field(
        default=False, description="The model is the checkpoint with the best validation, not the last one."
    )

    @model_validator(mode="after")
    def _happens(self) -> Self:
        # A run's own configuration has both: so many seconds, and the steps that they were settled as.
        is_every = self.every_steps is not None or self.every_s is not None
        if is_every == bool(self.at_fractions):
            raise ValueError("give every_steps, every_s or at_fractions, one of them")
        if len(set(self.at_fractions)) < len(self.at_fractions):
            raise ValueError("at_fractions names a share twice: give each once")
        return self

    @property
    def has_two_paces(self) -> bool:
        return self.every_s is not None and self.every_steps is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is known in steps when it happens."""
        return self.every_s is None or self.every_steps is not None

    def settled(self, step_s: float | None, max_steps: int) -> ValidationSpec:
        """The same with `every_s` in steps.

        Args:
            step_s: what one takes; None: nobody knows.
        """
        if self.every_s is None or self.every_steps is not None:
            return self
        known = None if not step_s else min(max(1, round(self.every_s / step_s)), max_steps)
        return self.model_copy(update={"every_steps": known or self._every_steps(max_steps)})

    def _every_steps(self, max_steps: int) -> int | None:
        """As `every_steps`; a tenth of the run while nobody knows what a step takes."""
        return self.every_steps if self.is_settled else -(-max_steps // UNKNOWN_PACE)

    def is_due(self, step: int, max_steps: int) -> bool:
        """Whether so many done steps are followed by a validation; the last one always is."""
        if step <= 0:
            return False
        if step == max_steps:
            return True
        if (every_steps := self._every_steps(max_steps)) is not None:
            return step % every_steps == 0
        return step in self._steps_of_fractions(max_steps)

    def first_due(self, max_steps: int) -> list[int]:
        """Steps before the last that a validation follows; where it is every so many, the first: others are multiples
        of it."""
        every_steps = self._every_steps(max_steps)
        steps = self._steps_of_fractions(max_steps) if every_steps is None else [every_steps]
        return [step for step in steps if step < max_steps]

    def _steps_of_fractions(self, max_steps: int) -> list[int]:
        return [max(1, round(fraction * max_steps)) for fraction in self.at_fractions]

    def __str__(self) -> str:
        """When, and what follows, for a person."""
        shares = ", ".join(f"{fraction:g}" for fraction in self.at_fractions)
        parts = [
            *([] if self.every_s is None else [f"every {self.every_s:g} s"]),
            *([] if self.every_steps is None else [f"every {self.every_steps:,} steps"]),
        ]
        when = ": ".join(parts) or f"at {shares} of the steps"
        rows = "" if self.max_rows is None else f", on {self.max_rows:,} rows at most"
        ends = "" if self.patience is None else f"; the run ends after {self.patience:,} in a row that were no better"
        return f"{when} and after the last{rows}{ends}{'; the best is the model' if self.keep_best else ''}"

    def count(self, max_steps: int) -> int:
        """Validations of a run that goes to its last step."""
        if (every_steps := self._every_steps(max_steps)) is not None:
            return -(-max_steps // every_steps)
        return len({max_steps, *self._steps_of_fractions(max_steps)})
