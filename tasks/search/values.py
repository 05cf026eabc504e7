"""Values of settings, as a pipeline file has them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue

EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
NO_KEYS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that YAML takes for something else where they stand without quotes."""


def _number(value: Any) -> Any:
    """YAML takes `1e-3` for a text, which a person means as a number."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


def _numbers(value: Any) -> Any:
    """The same of all that a branch holds."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list | tuple) else _number(value)


Scalar = Annotated[bool | int | float | str | None, BeforeValidator(_number)]
Branch = Annotated[dict[str, JsonValue], BeforeValidator(_numbers)]
"""A mapping, which takes the place of a whole branch of a pipeline file: `{decay: 0.999}` for `ema`."""
Value = Scalar | tuple[Scalar | Branch, ...] | Branch
"""A list is a value of its own, such as `[64, 64]` for the widths of layers."""
Choices = Annotated[tuple[Value, ...], Field(min_length=1)]
Settings = dict[str, Value]


def plain(value: Value) -> Any:
    """As JSON and YAML have it: a copy, which may be changed."""
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def shown(value: Value) -> str:
    """As a pipeline file has it."""
    return value if isinstance(value, str) else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_flow(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list | tuple) else json.dumps(value)


def _key(key: str) -> str:
    return key if PLAIN_KEY.fullmatch(key) and key.lower() not in NO_KEYS else json.dumps(key)


def written(value: Any) -> str:
    """The same text of equal values: `true` is no 1, 1 no 1.0, and the order of a mapping's keys says nothing."""
    return json.dumps(value, sort_keys=True)


def as_word(value: Value) -> str:
    """What stands for it where a choice can be no list and no mapping, as in a study of Optuna's."""
    return value if isinstance(value, str) else written(value)
