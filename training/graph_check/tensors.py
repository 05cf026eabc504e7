"""How the archive describes a tensor: its type, sizes, device, and where its bytes are."""

from __future__ import annotations

import math
import re
from typing import Any

from . import values as v
from .expressions import check_expression
from .refusal import refuse

ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2}
ITEM_BYTES |= {29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8}
"""By the number of a scalar type."""
MAX_SPREAD_ELEMENTS = 1 << 30
"""Strides of 0 spread a few bytes over any size: of more elements torch may make them all, or fail to count them."""
DEVICE_KIND = re.compile(r"[a-z]{1,16}")

_hint = v.one_of(as_int=v.whole_number, as_bool=v.boolean, as_float=v.number)
size_expression = v.object_of(expr_str=check_expression, hint=v.optional(_hint))
sym_int = v.one_of(as_expr=size_expression, as_int=v.whole_number)
device = v.object_of(
    type=lambda value: None if DEVICE_KIND.fullmatch(value) else v.empty(value), index=v.optional(v.whole_number)
)


def meta(check_size: v.Check) -> v.Check:
    return v.object_of(
        dtype=v.one_value_of(*ITEM_BYTES),
        sizes=v.list_of(check_size),
        requires_grad=v.boolean,
        device=device,
        strides=v.list_of(check_size),
        storage_offset=check_size,
        layout=v.one_value_of(7),
    )


payload = v.object_of(
    path_name=v.text, is_param=v.boolean, use_pickle=v.boolean, tensor_meta=meta(v.one_of(as_int=v.whole_number))
)


def reach_bytes(described: dict[str, Any]) -> int:
    """How many bytes the tensor needs; one of no elements none."""
    sizes, strides, (first,) = (
        [each["as_int"] for each in dims]
        for dims in (described["sizes"], described["strides"], [described["storage_offset"]])
    )
    if min([first, *sizes, *strides]) < 0:
        raise refuse("a tensor has a negative size", sizes)
    last = first + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    num_elements, num_needed = math.prod(sizes), 0 if 0 in sizes else last + 1
    if num_elements > max(num_needed, MAX_SPREAD_ELEMENTS):
        raise refuse("a tensor spreads its bytes over too many elements", sizes)
    return num_needed * ITEM_BYTES[described["dtype"]]
