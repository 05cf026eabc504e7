"""What `TabularFit` learnt, read back: a model's folder that somebody else wrote may hold anything."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, StrictStr, ValidationError, model_validator

from headway.data_contracts.store.documents import Frozen, Json
from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.encoder_specs import TabularEncoderSpec

Int64 = Annotated[StrictInt, Field(ge=-(1 << 63), lt=1 << 63)]


class NumberStatistics(Frozen):
    column: str
    num_values: int
    mean: float
    deviation: float = Field(ge=0)


class ValueStatistics(Frozen):
    column: str
    values: tuple[Int64, ...] | tuple[StrictStr, ...]
    """Ascending: their places are the numbers that a model knows them by."""

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        if any(one >= next_one for one, next_one in pairwise(self.values)):  # type: ignore[operator]  # all of one type
            raise ValueError("values are not in order")
        return self


class TimeStatistics(Frozen):
    """What `TimeFit` learnt of a column of dates or times."""

    column: str
    num_values: int
    first_us: Int64
    last_us: Int64
    """The first and last moment, microseconds since 1970 began."""
    is_zoned: bool
    cycles: tuple[Literal["day", "week", "year"], ...]
    """Those of which the rows have several places, the shortest first."""

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        # The alphabet's order happens to be that of their lengths.
        if self.first_us > self.last_us or list(self.cycles) != sorted(set(self.cycles)):
            raise ValueError("moments or cycles are not in order")
        return self


class TableStatistics(Frozen):
    numeric: tuple[NumberStatistics, ...]
    categorical: tuple[ValueStatistics, ...]
    label: NumberStatistics | ValueStatistics | None
    times: tuple[TimeStatistics, ...] = ()
    num_rows: int | None = None
    """That it was learnt from; None of what was fitted before they were counted."""

    @property
    def label_values(self) -> tuple[int, ...] | tuple[str, ...]:
        """The classes, by their numbers; none of a label that is a number."""
        return self.label.values if isinstance(self.label, ValueStatistics) else ()


def table_statistics(spec: TabularEncoderSpec, statistics: Json) -> TableStatistics:
    """Raises `IntegrityError`: they are none, or of other columns than the spec's."""
    try:
        read = TableStatistics.model_validate(statistics)
    except ValidationError as error:
        raise IntegrityError("the fitted statistics of a table are damaged.") from error
    names = tuple(tuple(each.column for each in columns) for columns in (read.numeric, read.categorical, read.times))
    is_of_label = spec.label is None or (
        read.label is not None
        and read.label.column == spec.label
        and isinstance(read.label, ValueStatistics) == spec.predicts_class
    )
    if names != (spec.numeric, spec.categorical, spec.times) or not is_of_label:
        raise IntegrityError("the encoder's spec and the fitted statistics do not belong together.")
    return read
