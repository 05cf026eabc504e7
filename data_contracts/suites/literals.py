"""Values of a Great Expectations suite's JSON as SQL literals, by the type of the column that they are compared with.

What a column cannot hold equals none of its values, as in Python: the text `"1"` is no number. Bounds are read as Great
Expectations reads them: a number given as text is a number, `true` is 1. Where pandas has no answer, or one that nobody
means, this does, and `tests/data_contracts/suites/test_suite_against_pandas.py` lists the cases:

- a date or timestamp is given as ISO text, in sets as in bounds; with a zone exactly where the column has one;
- a number beside a decimal column is the decimal that is written, not the double next to it;
- integers are compared exactly, however large;
- a number beside a column of 32-bit floats is the one of them next to it, in sets as in bounds.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

from headway.data_contracts.scans.exact_checks import bound_literal, nearest_float
from headway.data_contracts.scans.rows_database import literal
from headway.data_contracts.types.type_families import family, has_zone

NUMERIC = ("bool", "integer", "float", "decimal")
MAX_INTEGER = 1 << 100
"""Beyond every integer column's values, and within DuckDB's 128 bits."""
MAX_DOUBLE = int(sys.float_info.max)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


class UnsupportedExpectation(ValueError):
    """What is asked cannot be evaluated on the column; the message is a clause."""


def comparable_sql(column: str, type_name: str) -> str:
    """A number that is in the order of the column's values, which equals another exactly when they are equal.

    Args:
        column: the quoted column.

    Raises:
        UnsupportedExpectation: values of this type are neither numbers nor points in time.
    """
    kind = family(type_name)
    if kind == "bool":
        return f"{column}::TINYINT"
    if kind in ("integer", "float", "decimal"):
        return column
    if kind == "timestamp":
        # As integers: timestamps compare exactly, and in one time zone.
        return f"epoch_ns({column})" if "[ns" in type_name else f"epoch_us({column})"
    if kind == "date":
        return f"epoch_us({column}::TIMESTAMP)"
    raise UnsupportedExpectation(f"bounds go with numbers, dates and timestamps, not with {type_name}")


def read_bound(value: Any, type_name: str) -> Decimal | int | float:
    """A bound as the number that `comparable_sql` is compared with.

    Raises:
        UnsupportedExpectation: it is no bound of the type.
    """
    kind = family(type_name)
    number = _as_number(value)
    if kind in NUMERIC:
        if number is None:
            raise UnsupportedExpectation(f"the bound {value!r} is no number, and the column is {type_name}")
        return number
    if kind not in ("date", "timestamp"):
        raise UnsupportedExpectation(f"bounds go with numbers, dates and timestamps, not with {type_name}")
    if number is not None or not isinstance(value, str):
        raise UnsupportedExpectation(f"the bound {value!r} is no date, and the column is {type_name}")
    return _instant(value, type_name)


def _as_number(value: Any) -> Decimal | int | float | None:
    """The number that Great Expectations takes a bound for; None: it is none."""
    if isinstance(value, int):
        # Beyond every double, and beyond what SQL would take as a number.
        if abs(value) > MAX_DOUBLE:
            raise UnsupportedExpectation("a bound is beyond every number that a column holds")
        return int(value)  # true is 1
    if not isinstance(value, float | str):
        return None
    try:
        if isinstance(value, str) and not math.isfinite(float(value)):
            # Infinity is no decimal, and a legitimate bound.
            return float(value)
        # By its text: the decimal that is written, not the double next to it.
        number = Decimal(str(value).strip())
    except (InvalidOperation, ValueError):
        return None
    if number.is_nan():
        raise UnsupportedExpectation("a bound is not a number (NaN)")
    if number.is_infinite():
        return float(number)
    return int(number) if number == number.to_integral_value() and abs(number.adjusted()) < 40 else number


def _instant(text: str, type_name: str) -> int:
    """Micro- or nanoseconds since 1970 of a date or time in ISO 8601."""
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UnsupportedExpectation(
            f"{text!r} is no date or time in ISO 8601, and the column is {type_name}"
        ) from None
    # A moment without a zone means nothing beside one that has it.
    if has_zone(type_name) and moment.tzinfo is None:
        raise UnsupportedExpectation(f"{text!r} has no offset from UTC, and the column is {type_name}")
    if not has_zone(type_name) and moment.tzinfo is not None:
        raise UnsupportedExpectation(f"{text!r} has an offset from UTC, and the column is {type_name}")
    microseconds = (moment.replace(tzinfo=moment.tzinfo or datetime.UTC) - EPOCH) // MICROSECOND
    return microseconds * 1000 if "[ns" in type_name else microseconds


def bounds_sql(
    expression: str,
    type_name: str,
    low: Any = None,
    high: Any = None,
    *,
    strict_min: bool = False,
    strict_max: bool = False,
) -> str:
    """The condition that an expression of `comparable_sql` is within bounds; NaN never is.

    Raises:
        UnsupportedExpectation: a bound is none of the type.
    """
    kind = family(type_name)
    given = ((low, ">" if strict_min else ">="), (high, "<" if strict_max else "<="))
    parts = [
        _compared(expression, relation, read_bound(bound, type_name), type_name)
        for bound, relation in given
        if bound is not None
    ]
    # DuckDB holds NaN to be above every number.
    parts += [f"NOT isnan({expression})"] if kind == "float" else []
    return " AND ".join(parts)


def _compared(expression: str, relation: str, bound: Decimal | int | float, type_name: str) -> str:
    kind = family(type_name)
    if kind == "float":
        return f"{expression} {relation} {literal(nearest_float(bound, type_name))}"
    if isinstance(bound, float):  # an infinity
        return "TRUE" if (bound > 0) is relation.startswith("<") else "FALSE"
    if kind == "decimal":
        return f"{expression} {relation} {_decimal(bound)}"
    # An integer beside a fraction, which DuckDB would compare as doubles.
    # An integer above 2.5 is one above 2: the fraction is rounded into the relation.
    if bound != int(bound):
        whole = math.floor(bound)
        relation, bound = ("<=", whole) if relation.startswith("<") else (">", whole)
    # Within 128 bits: beyond them every integer compares alike.
    return f"{expression} {relation} {max(-MAX_INTEGER, min(MAX_INTEGER, int(bound)))}"


def _decimal(value: Decimal | int) -> str:
    text = f"{Decimal(value).normalize():f}"
    if sum(character.isdigit() for character in text) > 38:
        raise UnsupportedExpectation(f"{text} has more than 38 digits")
    return bound_literal(text, "decimal128(38, 0)")


def set_sql(values: Iterable[Any], type_name: str) -> list[str]:
    """The different values of a set that a column can hold, as literals beside `member_sql`; null is none of them.

    Raises:
        UnsupportedExpectation: values of this type cannot be members, or a text is no date in a column of dates.
    """
    kind = family(type_name)
    # By value: 1 and 1.0 are one member, and a set counts its members.
    found: dict[Any, str] = {}
    for value in values:
        if isinstance(value, list | dict):
            raise UnsupportedExpectation("a set holds plain values, not lists")
        if kind == "string":
            if isinstance(value, str):
                found[value] = literal(value)
        elif kind in NUMERIC:
            if isinstance(value, int | float) and (member := _member(value, type_name)) is not None:
                found[member[0]] = member[1]
        elif kind in ("date", "timestamp"):
            if isinstance(value, str):
                instant = _instant(value, type_name)
                found[instant] = str(instant)
        else:
            raise UnsupportedExpectation(f"sets go with numbers, texts, dates and timestamps, not with {type_name}")
    return list(found.values())


def member_sql(column: str, type_name: str) -> str:
    """The column as `set_sql` compares it."""
    return column if family(type_name) == "string" else comparable_sql(column, type_name)


def _member(value: bool | int | float, type_name: str) -> tuple[Any, str] | None:
    """A number and its literal, as a column can hold it; None: it cannot."""
    kind = family(type_name)
    if isinstance(value, int) and abs(value) > MAX_DOUBLE:
        return None
    if kind == "float":
        number = nearest_float(value, type_name)
        # NaN equals nothing, so it is no member.
        return None if math.isnan(number) else (number, literal(number))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    exact = Decimal(str(value)) if isinstance(value, float) else Decimal(int(value))
    if kind == "decimal":
        return exact, _decimal(exact)
    # A fraction is no integer's member, nor is a number beyond its range.
    return (int(exact), str(int(exact))) if exact == int(exact) and abs(exact) < MAX_INTEGER else None
