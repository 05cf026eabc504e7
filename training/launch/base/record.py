"""Records of an attempt, read back with the types that their classes declare: where they lie others may write, and a
disk may have flipped a bit. Standard library only."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, cast

T = TypeVar("T")
LARGEST = 1 << 63
"""No number of a record is as large, unless it is infinite: it would fit no float, no date and no line."""


def read_record(kind: type[T], value: Any, *, is_strict: bool = False) -> T:
    """A dataclass from a JSON object.

    Args:
        is_strict: it has all fields and no others. Else unknown ones are left out, for a frozen worker may be older or
            newer than its supervisor, and those that are missing have their defaults.

    Raises:
        ValueError: it is no object, a field is missing, or of another type.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"no {kind.__name__}")
    declared, given = _declared(cast(Hashable, kind)), {}
    if is_strict and value.keys() != declared.keys():
        raise ValueError(f"not the fields of {kind.__name__}")
    for name, (hint, is_needed) in declared.items():
        if name in value:
            given[name] = _of_type(hint, value[name], name)
        elif is_needed:
            raise ValueError(f"{kind.__name__} lacks {name}")
    return kind(**given)


def record_or_none(kind: type[T], value: Any, *, is_strict: bool = False) -> T | None:
    """None in place of what is none, as of a file that is torn."""
    try:
        return read_record(kind, value, is_strict=is_strict)
    except ValueError:
        return None


@functools.cache
def _declared(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Each field's type, and whether it has no default."""
    hints = typing.get_type_hints(kind)
    return {
        each.name: (hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    }


def _of_type(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        if value is None and type(None) in arguments:
            return None
        return _of_type(next(each for each in arguments if each is not type(None)), value, name)
    if is_dataclass(hint):
        return read_record(hint, value)  # type: ignore[arg-type]
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _of_type(arguments[1], each, name) for key, each in value.items()}
    # JSON has no tuples, and records are compared with ones that were never written.
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_of_type(arguments[0], each, name) for each in value)
    # NaN is under no limit and over none, and so it is no number here.
    is_whole = type(value) is int and abs(value) < LARGEST
    is_real = type(value) is float and (abs(value) < LARGEST or math.isinf(value))
    if (
        (origin is Literal and value in arguments)
        or (hint is float and (is_whole or is_real))
        or (hint is int and is_whole)
        or (hint in (str, bool) and type(value) is hint)
    ):
        return value
    raise ValueError(f"{name} is no {hint}")
