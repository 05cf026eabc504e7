"""Messages between a process that shards and one that runs a user's encoder: a JSON header, and parts of raw bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Part = bytes | memoryview
LENGTH_BYTES = 8


class Message(NamedTuple):
    header: dict[str, Any]
    parts: list[memoryview]


def send(stream: BinaryIO, header: dict[str, Any], parts: Sequence[Part] = ()) -> None:
    """Raises `OSError`: nobody reads."""
    text = json.dumps({**header, "parts": [memoryview(part).nbytes for part in parts]}).encode()
    # The header names the parts' sizes, so a reader knows how much to wait for, and nothing is pickled.
    stream.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """None at the end of the stream, also in the middle of a message."""
    if (size := _exactly(stream, LENGTH_BYTES)) is None:
        return None
    if (text := _exactly(stream, int.from_bytes(size, "little"))) is None:
        return None
    header = json.loads(bytes(text))
    # All are read before any is used: a message that ends early is the end of the stream.
    parts = [_exactly(stream, size_bytes) for size_bytes in header.pop("parts")]
    whole = [part for part in parts if part is not None]
    return Message(header, whole) if len(whole) == len(parts) else None


def _exactly(stream: BinaryIO, size_bytes: int) -> memoryview | None:
    data = stream.read(size_bytes)
    return memoryview(data) if len(data) == size_bytes else None


def batch_bytes(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def batch_from(part: memoryview) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(part)) as reader:
        return reader.read_next_batch()


def array_bytes(values: NDArray[Any]) -> memoryview:
    # The bytes as they lie in memory; shape and type are known to the reader.
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
