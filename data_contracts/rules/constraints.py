"""What one value must be: the vocabulary that columns and rules of a contract share."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from headway.data_contracts.rules.pii import PiiKind
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.types.bounds import compare_bounds, read_bound
from headway.data_contracts.types.type_families import MEASURED, ORDERED, element_type, family

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
        if pattern is not None and (problem := _re2_problem(pattern)):
            raise ValueError(f"not a regular expression of RE2 ({problem})")
        return pattern

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        """Of lengths and elements, which are numbers; what `min` and `max` mean is for the column's type to say."""
        elements = self.elements or Elements()
        for low, high in ((self.min_length, self.max_length), (elements.min, elements.max)):
            if low is not None and high is not None and low > high:
                raise ValueError(_out_of_order(low, high))
        return self

    @property
    def is_empty(self) -> bool:
        bounds = (self.min, self.max, self.one_of, self.pattern, self.min_length, self.max_length, self.elements)
        return not self.no_pii and all(bound is None for bound in bounds)


@functools.cache  # a contract is read several times in a run, and DuckDB takes a hundredth of a second to begin
def _re2_problem(pattern: str) -> str:
    """What RE2 says against a pattern: it is asked through DuckDB, which judges the rows by it."""
    import duckdb

    with duckdb.connect() as connection:
        try:
            # Alone, as the exact count takes it, and as a group between anchors, as Great Expectations does.
            for each in (pattern, rf"\A(?:{pattern})\z"):
                connection.execute("SELECT regexp_full_match('', ?)", [each]).fetchall()
        except duckdb.Error as error:
            return str(error).removeprefix("Invalid Input Error: ")
    return ""


def misplaced(constraints: Constraints, type_name: str) -> Iterator[str]:
    """What is asked of a type that cannot be asked of it, as the ends of sentences."""
    kind = family(type_name)
    if kind in ORDERED:
        yield from _bound_problems(constraints, type_name)
    elif (constraints.min, constraints.max) != (None, None):
        yield f"min and max go with numbers, dates and times, not with {type_name}"
    if (constraints.pattern is not None or constraints.no_pii) and kind != "string":
        yield f"pattern and no_pii go with string, not with {type_name}"
    if (constraints.min_length is not None or constraints.max_length is not None) and kind not in MEASURED:
        yield f"min_length and max_length go with string, binary and lists, not with {type_name}"
    if constraints.one_of is not None:
        yield from _member_problems(constraints.one_of, type_name)
    if constraints.elements is not None:
        yield from _element_problems(constraints.elements, type_name)


def _member_problems(members: Iterable[Scalar], type_name: str) -> Iterator[str]:
    kind = family(type_name)
    if kind not in ("bool", "integer", "float", "decimal", "string"):
        yield f"`in` goes with numbers, strings and bool, not with {type_name}"
    elif kind == "string":
        # Beside a number the engine would turn texts into numbers: `01` would be one of 1 and 2.
        others = (member for member in members if not isinstance(member, str))
        yield from (f"`in` holds {str(each).lower()}, which is no text: put it in quotes" for each in others)


def _bound_problems(constraints: Constraints, type_name: str) -> Iterator[str]:
    low, high = constraints.min, constraints.max
    try:
        for bound in (low, high):
            if bound is not None:
                read_bound(bound, type_name)
        if low is not None and high is not None and compare_bounds(low, high, type_name) > 0:
            yield _out_of_order(low, high)
    except ValueError as error:
        yield str(error)


def _out_of_order(low: object, high: object) -> str:
    return f"the lower bound {low} is above the upper bound {high}"


def _element_problems(elements: Elements, type_name: str) -> Iterator[str]:
    if family(type_name) != "list":
        yield f"elements go with lists, not with {type_name}"
    elif (elements.min, elements.max) != (None, None) and family(element_type(type_name)) not in ("integer", "float"):
        yield f"min and max of elements go with lists of numbers, not with {type_name}"
