"""When a run looks at rows that neither train nor evaluate, and what follows: the end of a run, or which checkpoint is
its model.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen

Fraction = Annotated[float, Field(gt=0, le=1)]


class ValidationSpec(Frozen):
    every_steps: int | None = Field(default=None, gt=0, description="Steps between two validations.")
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
        default=0.0, ge=0, allow_inf_nan=False, description="A validation is better only by more than this."
    )
    keep_best: bool = Field(
        default=False, description="The model is the checkpoint with the best validation, not the last one."
    )

    @model_validator(mode="after")
    def _happens(self) -> Self:
        if (self.every_steps is None) == (not self.at_fractions):
            raise ValueError("give every_steps or at_fractions, one of them")
        return self

    def is_due(self, step: int, max_steps: int) -> bool:
        """Whether so many done steps are followed by a validation; the last one always is."""
        if step <= 0:
            return False
        if step == max_steps:
            return True
        if self.every_steps is not None:
            return step % self.every_steps == 0
        return any(step == max(1, round(fraction * max_steps)) for fraction in self.at_fractions)

    def __str__(self) -> str:
        """When, and what follows, for a person."""
        shares = ", ".join(f"{fraction:g}" for fraction in self.at_fractions)
        when = f"every {self.every_steps:,} steps" if self.every_steps is not None else f"at {shares} of the steps"
        rows = "" if self.max_rows is None else f", on {self.max_rows:,} rows at most"
        ends = "" if self.patience is None else f"; the run ends after {self.patience:,} in a row that were no better"
        return f"{when} and after the last{rows}{ends}{'; the best is the model' if self.keep_best else ''}"

    def count(self, max_steps: int) -> int:
        """Validations of a run that goes to its last step."""
        if self.every_steps is not None:
            return -(-max_steps // self.every_steps)
        return len({max_steps, *(max(1, round(fraction * max_steps)) for fraction in self.at_fractions)})
