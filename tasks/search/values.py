"""Values of settings, as a pipeline file has them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _number(value: Any) -> Any:
    """YAML takes `1e-3` for a text, which a person means as a number."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


Scalar = Annotated[bool | int | float | str | None, BeforeValidator(_number)]
Value = Scalar | tuple[Scalar, ...]
"""A list is a value of its own, such as `[64, 64]` for the widths of layers."""
Choices = Annotated[tuple[Value, ...], Field(min_length=1)]
Settings = dict[str, Value]


def plain(value: Value) -> bool | int | float | str | list[Any] | None:
    """As JSON and YAML have it."""
    return list(value) if isinstance(value, tuple) else value


def shown(value: Value) -> str:
    """As a pipeline file has it."""
    return value if isinstance(value, str) else json.dumps(value)
