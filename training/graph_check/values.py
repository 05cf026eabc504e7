"""Checks of JSON values, and of lists, maps and objects of them: the words that the schema of a graph is written in.

Names become variables, attributes and arguments in source that torch compiles: they are identifiers.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

from .expressions import SYMBOL
from .refusal import refuse

Check = Callable[[Any], None]
"""Raises `UnsafeGraph`, or what parsing something else runs into (`check.MALFORMED`)."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,500}")
PART = re.compile(r"[A-Za-z0-9_]{1,500}")
CALL_NUMBER = re.compile(r"@\d{1,6}$")
SPECIAL_FLOATS = ("Infinity", "-Infinity", "NaN")
MAX_CHARACTERS = 100_000


def name(value: str) -> None:
    """A variable or an argument in source that torch compiles."""
    if not NAME.fullmatch(value) or keyword.iskeyword(value):
        raise refuse("a name is no identifier", value)


def attribute_path(value: str) -> None:
    """A path of attributes in source that torch compiles."""
    if not all(PART.fullmatch(part) and not part.startswith("__") for part in value.split(".")):
        raise refuse("a name is no path of attributes", value)


def module_path(value: str) -> None:
    if value:
        attribute_path(CALL_NUMBER.sub("", value))


def text(value: str) -> None:
    """Remains a string whatever torch does with it."""
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise refuse("it has no text where one belongs", value)


def boolean(value: bool) -> None:
    if not isinstance(value, bool):
        raise refuse("it has no truth value where one belongs", value)


def whole_number(value: int) -> None:
    if type(value) is not int or abs(value) >= 1 << 64:
        raise refuse("it has no whole number where one belongs", value)


def number(value: float | str) -> None:
    if type(value) not in (int, float) and value not in SPECIAL_FLOATS:
        raise refuse("it has no number where one belongs", value)


def symbol(value: str) -> None:
    if not SYMBOL.fullmatch(value):
        raise refuse("a symbol is none that torch makes", value)


def empty(value: object) -> None:
    if value not in ([], {}):
        raise refuse("it has what torch would run, import or unpickle", value)


def one_value_of(*values: object) -> Check:
    def check(value: object) -> None:
        if value not in values or isinstance(value, bool):
            raise refuse("it has a value that torch does not write", value)

    return check


def list_of(check_item: Check) -> Check:
    def check(value: list[Any]) -> None:
        if not isinstance(value, list):
            raise refuse("it has no list where one belongs", value)
        for item in value:
            check_item(item)

    return check


def map_of(check_key: Check, check_value: Check) -> Check:
    def check(value: dict[str, Any]) -> None:
        for key, each in value.items():
            check_key(key)
            check_value(each)

    return check


def optional(check_value: Check) -> Check:
    def check(value: Any) -> None:
        if value is not None:
            check_value(value)

    return check


def object_of(**fields: Check) -> Check:
    """Of exactly these fields."""

    def check(value: dict[str, Any]) -> None:
        if value.keys() != fields.keys():
            raise refuse("an object has other fields than in torch 2.13", sorted(value))
        for name, check_field in fields.items():
            check_field(value[name])

    return check


def one_of(**kinds: Check) -> Check:
    """An object of one of these fields."""

    def check(value: dict[str, Any]) -> None:
        ((kind, content),) = value.items()
        if kind not in kinds:
            raise refuse("it has a kind of value that no graph of tensors needs", kind)
        kinds[kind](content)

    return check
