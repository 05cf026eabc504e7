"""JSON that Headway wrote itself, read strictly: what no writer of ours writes is refused before anybody walks it.

A small record, such as a ref's entry, has to be canonical to the byte: an added blank, or a key that stands twice,
changes nothing that is read and would not be noticed. A document's bytes are known by its digest.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from headway.data_contracts.store.digests import canonical_json

MAX_DEPTH = 64
"""Lists and objects within one another; a configuration has under ten."""
MAX_RECORD_BYTES = 16 << 20


def parse_json(data: bytes) -> Any:
    """A value that can be written again: of finite numbers, and not deep.

    Raises:
        ValueError: it is none.
    """
    try:
        # Python reads NaN and Infinity, which other readers refuse.
        value = json.loads(data, parse_constant=_not_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("too deep") from error
    # What has few brackets is not deep, and most has few.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_deep(value):
        raise ValueError("too deep")
    return value


def parse_canonical(data: bytes) -> Any:
    """The value of canonical bytes.

    Raises:
        ValueError: they are none.
    """
    value = parse_json(data)
    # The only form that a writer of ours makes, so any difference is somebody else's edit.
    if canonical_json(value) != data:
        raise ValueError("not canonical")
    return value


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    # Level by level, without recursion, which a deep value would exhaust.
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for outer in level:
            inner += outer.values() if isinstance(outer, dict) else outer
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _not_finite(_text: str) -> NoReturn:
    raise ValueError("not finite")
