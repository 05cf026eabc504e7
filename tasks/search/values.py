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


Value = Annotated[bool | int | float | str | None, BeforeValidator(_number)]
Choices = Annotated[tuple[Value, ...], Field(min_length=1)]
Settings = dict[str, Value]


def shown(value: Value) -> str:
    """As a pipeline file has it."""
    return value if isinstance(value, str) else json.dumps(value)
