"""One part of a table's rows in cross-validation: held out from one model, which is trained on the other parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen

MIN_FOLDS: Final = 2
MAX_FOLDS: Final = 20


class Fold(Frozen):
    number: int = Field(ge=1, description="Counted from 1.")
    of: int = Field(ge=MIN_FOLDS, le=MAX_FOLDS, description="How many there are.")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.number > self.of:
            raise ValueError(f"fold {self.number} of {self.of}: there are no more than {self.of}")
        return self

    @property
    def first_fraction(self) -> float:
        """Of all hashes, those below it belong to the folds before."""
        # The same expression as the next fold's end of it: no hash may lie between two folds, or in both.
        return (self.number - 1) / self.of

    @property
    def last_fraction(self) -> float:
        return self.number / self.of

    def __str__(self) -> str:
        return f"fold {self.number} of {self.of}"


def folds_of(num_folds: int) -> Iterator[Fold]:
    return (Fold(number=number, of=num_folds) for number in range(1, num_folds + 1))
