"""What one value must be: the vocabulary that columns and rules of a contract share."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from data_contracts.documents import Frozen
from data_contracts.pii import PiiKind
from data_contracts.type_families import MEASURED, ORDERED, TEMPORAL, Family, element_type, family, has_zone

Number = int | float
Scalar = bool | int | float | str


def _as_meant(value: Any) -> Any:
    """YAML reads `2026-01-31` as a date, and `1e6` as a text."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return float(value) if isinstance(value, str) and _WITH_EXPONENT.fullmatch(value) else value


_WITH_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")
Bound = Annotated[int | float | str, BeforeValidator(_as_meant)]


class Elements(Frozen):
    """What each element of a list must be, such as a token of a vocabulary."""

    min: Number | None = Field(default=None, description="Least element, inclusive.")
    max: Number | None = Field(default=None, description="Greatest element, inclusive. For tokens: vocabulary - 1.")
    nullable: bool = Field(default=False, description="Whether an element may be null.")
    finite: bool = Field(default=True, description="Whether NaN and infinity are refused (lists of floats).")


class Constraints(Frozen):
    """What one value must be. A null breaks none of these; `nullable` and `not_null` speak of nulls."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    min: Bound | None = Field(
        default=None, description="Least value, inclusive; a date or time as text. NaN breaks it."
    )
    max: Bound | None = Field(
        default=None, description="Greatest value, inclusive; a date or time as text. NaN breaks it."
    )
    one_of: tuple[Scalar, ...] | None = Field(default=None, alias="in", min_length=1, description="Allowed values.")
    pattern: str | None = Field(default=None, description="Regular expression (RE2) that the whole text matches.")
    min_length: int | None = Field(default=None, ge=0, description="Least number of characters, bytes or elements.")
    max_length: int | None = Field(default=None, ge=0, description="Greatest number of characters, bytes or elements.")
    elements: Elements | None = Field(default=None, description="What each element of a list must be.")
    no_pii: tuple[PiiKind, ...] = Field(
        default=(), description="Personal data that the text may not hold; what was found is counted, never shown."
    )

    @field_validator("pattern")
    @classmethod
    def _is_regular_expression(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression ({error})") from error
        return pattern

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        elements = self.elements or Elements()
        pairs = ((self.min, self.max), (self.min_length, self.max_length), (elements.min, elements.max))
        for low, high in pairs:
            if low is not None and high is not None and type(low) is type(high) and low > high:  # type: ignore[operator]
                raise ValueError(f"the lower bound {low} is above the upper bound {high}")
        return self

    @property
    def asks_nothing(self) -> bool:
        bounds = (self.min, self.max, self.one_of, self.pattern, self.min_length, self.max_length, self.elements)
        return not self.no_pii and all(bound is None for bound in bounds)


def misplaced(asked: Constraints, type_name: str) -> Iterator[str]:
    """What is asked of a type that cannot be asked of it, as the ends of sentences."""
    kind = family(type_name)
    bounds = [bound for bound in (asked.min, asked.max) if bound is not None]
    if bounds and kind not in ORDERED:
        yield f"min and max go with numbers, dates and times, not with {type_name}"
    elif bounds:
        yield from (problem for bound in bounds if (problem := _bound_problem(bound, type_name)))
    if (asked.pattern is not None or asked.no_pii) and kind != "string":
        yield f"pattern and no_pii go with string, not with {type_name}"
    if (asked.min_length is not None or asked.max_length is not None) and kind not in MEASURED:
        yield f"min_length and max_length go with string, binary and lists, not with {type_name}"
    if asked.one_of is not None and kind not in ("bool", "integer", "float", "decimal", "string"):
        yield f"`in` goes with numbers, strings and bool, not with {type_name}"
    if asked.elements is not None:
        yield from _element_problems(asked.elements, type_name)


def _bound_problem(bound: int | float | str, type_name: str) -> str:
    kind = family(type_name)
    if kind in TEMPORAL:
        return _temporal_problem(bound, type_name)
    if isinstance(bound, str) and kind == "decimal":
        try:
            return "" if Decimal(bound).is_finite() else f"{bound} is no decimal number"
        except InvalidOperation:
            return f"{bound!r} is no decimal number"
    return f"{bound!r} is no number" if isinstance(bound, str) else ""


def _temporal_problem(bound: int | float | str, type_name: str) -> str:
    readers: dict[Family, type[datetime.date] | type[datetime.time]] = {
        "date": datetime.date,
        "time": datetime.time,
        "timestamp": datetime.datetime,
    }
    reader = readers[family(type_name)]
    try:
        read = reader.fromisoformat(str(bound))
    except ValueError:
        return f"{bound!r} is no {reader.__name__} such as 2026-01-31T12:00:00"
    if has_zone(type_name) and isinstance(read, datetime.datetime) and read.tzinfo is None:
        return f"{bound!r} needs its offset from UTC, such as +00:00, for {type_name}"
    return ""


def _element_problems(elements: Elements, type_name: str) -> Iterator[str]:
    if family(type_name) != "list":
        yield f"elements go with lists, not with {type_name}"
    elif (elements.min, elements.max) != (None, None) and family(element_type(type_name)) not in ("integer", "float"):
        yield f"min and max of elements go with lists of numbers, not with {type_name}"
