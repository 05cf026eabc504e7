"""A safetensors file as it will lie on disk, in a buffer that is used again for every checkpoint.

Staging a tensor is one copy to its place in the image; what is left to do is writing one run of bytes. On CUDA the
buffer is pinned, and copies are enqueued on the stream that trains: they see the weights between two updates without
the host waiting for them.

The format: 8 bytes little-endian length, a JSON header, the tensors (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.checkpoint.layout import DTYPES

LENGTH_BYTES = 8
ALIGNMENT_BYTES = 64
"""The tensors begin at a multiple of this."""
MAX_HEADER_BYTES = 100 << 20
"""As safetensors itself limits it."""
PAGE_BYTES = 4096
"""An image begins at a multiple of this, as direct writing asks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A tensor of a file: its bytes are [start, stop) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    encoded: bytes
    entries: dict[str, Entry]

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return max((entry.stop for entry in self.entries.values()), default=len(self.encoded))


def make_header(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = None) -> Header:
    """Places for tensors, given type (torch's name) and shape by name: widest elements first, so all are aligned."""
    places: dict[str, tuple[int, int]] = {}
    stop = 0
    for name in sorted(tensors, key=lambda name: (-DTYPES[tensors[name][0]][1], name)):
        dtype, shape = tensors[name]
        start, stop = stop, stop + DTYPES[dtype][1] * math.prod(shape)
        places[name] = (start, stop)
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (start, stop) in places.items():
        dtype, shape = tensors[name]
        fields[name] = {"dtype": DTYPES[dtype][0], "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    encoded = len(text).to_bytes(LENGTH_BYTES, "little") + text
    entries = {
        name: Entry(
            dtype=tensors[name][0],
            shape=tuple(tensors[name][1]),
            start=len(encoded) + start,
            stop=len(encoded) + stop,
        )
        for name, (start, stop) in places.items()
    }
    return Header(encoded=encoded, entries=entries)


def parse_header(text: bytes) -> dict[str, Entry]:
    """The entries of a file, from its header without the length.

    Raises:
        ValueError: it is not one that safetensors would write.
    """
    names = {code: name for name, (code, _) in DTYPES.items()}
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the header is no mapping")
    fields.pop("__metadata__", None)
    begin = LENGTH_BYTES + len(text)
    entries, reached = {}, begin
    for name, field in sorted(fields.items(), key=lambda item: list(item[1]["data_offsets"])):
        dtype, shape, (start, stop) = names[field["dtype"]], tuple(field["shape"]), field["data_offsets"]
        if begin + start != reached or stop - start != DTYPES[dtype][1] * math.prod(shape):
            raise ValueError(f"{name} does not lie where it should")
        reached = begin + stop
        entries[name] = Entry(dtype=dtype, shape=shape, start=begin + start, stop=begin + stop)
    return entries


class FileImage:
    """The image of one file. `stage` may be called again and again; the memory stays.

    Args:
        pinned: for copies from a CUDA device.
    """

    def __init__(self, header: Header, *, pinned: bool = False) -> None:
        self.header = header
        memory = torch.empty(header.size_bytes + PAGE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        start = -memory.data_ptr() % PAGE_BYTES
        self._bytes = memory[start : start + header.size_bytes]
        self._bytes[: len(header.encoded)] = torch.frombuffer(bytearray(header.encoded), dtype=torch.uint8)
        self._staged: torch.cuda.Event | None = None

    def stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors, which are contents of the header's own names, to their places."""
        pinned = self._bytes.is_pinned() if torch.cuda.is_available() else False
        for name, entry in self.header.entries.items():
            place = self._bytes[entry.start : entry.stop].view(getattr(torch, entry.dtype)).view(entry.shape)
            place.copy_(tensors[name].detach(), non_blocking=pinned)
        if pinned:
            self._staged = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._staged.record()

    def view(self) -> memoryview:
        """The file's bytes, once all copies have arrived; for any thread."""
        if self._staged is not None:
            self._staged.synchronize()
        return self._bytes.numpy().data
