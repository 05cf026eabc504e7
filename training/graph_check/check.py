"""Refuses an exported program (`.pt2`) that could run code, before torch sees it.

`torch.export.load` evaluates expressions of the archive (`sympy.sympify` is `eval`), unpickles inputs and tensors,
loads libraries that lie in it, imports modules that tree specs name, looks operators up by dotted path, and writes
names into source that it compiles. So all that it would read is parsed here first: a zip that can be read in one way
only, and JSON of exactly the schema that torch 2.13 writes, in which no string can do any of this. What is not
understood is refused.

A copy of this package goes with every model that MLflow serves: it needs the standard library alone. It does not vouch
for torch itself: an operator that reads beyond its tensor would be torch's to mend.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from .archive import records_of
from .records import check_records
from .refusal import UnsafeGraph

MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error, RecursionError, MemoryError)
"""What parsing may run into before it comes to a judgement."""


def check_graph(data: bytes | memoryview) -> None:
    """Raises `UnsafeGraph`: these bytes are no archive that torch may load; says what was found."""
    try:
        check_records(records_of(memoryview(data)))
    except UnsafeGraph:
        raise
    except MALFORMED as error:
        why = f"{type(error).__name__}: {ascii(str(error))[:120]}"
        raise UnsafeGraph(f"it is not what torch 2.13 writes ({why})") from error


def check_graph_file(path: Path) -> None:
    """`check_graph` of a file, which is mapped and not read as a whole."""
    with path.open("rb") as stream:
        if not stream.seek(0, 2):
            raise UnsafeGraph("it is empty")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            why = _why_not(view)
    if why:
        raise UnsafeGraph(why)


def _why_not(data: memoryview) -> str:
    """In words alone: an error's frames would keep the file mapped. Empty: it may be loaded."""
    try:
        check_graph(data)
    except UnsafeGraph as error:
        return str(error)
    return ""
