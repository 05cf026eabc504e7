"""A safetensors file as it will lie on disk, in a buffer that is used again for every checkpoint.

Staging a tensor is one copy to its place in the image; what is left to do is writing one run of bytes. The image is
written from its beginning while it is still filled (`headway.training.checkpoint.staging`).

The format: 8 bytes little-endian length, a JSON header, the tensors (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headway.training.checkpoint.layout import DTYPES, LENGTH_BYTES, Entry

ALIGNMENT_BYTES = 64
"""The tensors begin at a multiple of this."""
PAGE_BYTES = 4096
"""An image begins at a multiple of this, as direct writing asks."""
RUN_BYTES = 8 << 20
"""About so many are copied in one call, and then written while the next are copied."""


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
    # By width, then name: every tensor is aligned to its own element, and the same tensors give the same file.
    for name in sorted(tensors, key=lambda name: (-DTYPES[tensors[name][0]][1], name)):
        dtype, shape = tensors[name]
        start, stop = stop, stop + DTYPES[dtype][1] * math.prod(shape)
        places[name] = (start, stop)
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (start, stop) in places.items():
        dtype, shape = tensors[name]
        fields[name] = {"dtype": DTYPES[dtype][0], "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    # Padded with blanks, which JSON allows, so that the tensors begin at an aligned byte.
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


class CopyRun(NamedTuple):
    """Tensors that lie one behind the other."""

    names: tuple[str, ...]
    stop: int
    """Once they are copied the file is there up to this byte, where the next run begins."""


class FileImage:
    """The image of one file. It may be filled again and again; the memory stays.

    Args:
        pinned: for copies from a CUDA device.
    """

    def __init__(self, header: Header, *, pinned: bool = False) -> None:
        self.header = header
        # One page more than is needed: torch aligns to 64 bytes, and direct writing needs a page.
        memory = torch.empty(header.size_bytes + PAGE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        start = -memory.data_ptr() % PAGE_BYTES
        self._bytes = memory[start : start + header.size_bytes]
        self._bytes[: len(header.encoded)] = torch.frombuffer(bytearray(header.encoded), dtype=torch.uint8)
        self._places = {
            name: self._bytes[entry.start : entry.stop].view(getattr(torch, entry.dtype)).view(entry.shape)
            for name, entry in header.entries.items()
        }
        self._moved = threading.Condition()
        self._num_bytes = 0
        self._failure: BaseException | None = None

    def stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy all its tensors, given by the header's names."""
        self.begin()
        self.copy(tensors)
        self.reach(self.header.size_bytes)

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy some of its tensors to their places, in one call, which does not hold the interpreter up."""
        if tensors:
            places = [self._places[name] for name in tensors]
            # One call that releases the GIL; a loop over thousands of small tensors would hold the training thread up.
            torch._foreach_copy_(places, [value.detach() for value in tensors.values()])

    def enqueue(self, tensors: Mapping[str, Tensor]) -> None:
        """The same on the current CUDA stream, for a pinned image."""
        # `non_blocking` is truly asynchronous only between a device and pinned memory.
        for name, value in tensors.items():
            self._places[name].copy_(value.detach(), non_blocking=True)

    def runs(self, names: Collection[str]) -> Iterator[CopyRun]:
        """Those of its tensors that are among `names`, in the order of the file; all others are there already."""
        groups: list[list[str]] = []
        # Runs never cross a tensor that is copied earlier: bytes behind it are there before those in front.
        num_free = -1
        for name, entry in self.header.entries.items():
            size_bytes = entry.stop - entry.start
            if name not in names:
                num_free = -1
            elif size_bytes <= num_free:
                groups[-1].append(name)
                num_free -= size_bytes
            else:
                groups.append([name])
                num_free = RUN_BYTES - size_bytes
        # A run ends where the next begins, so tensors in between, copied before, count as there.
        starts = [self.header.entries[group[0]].start for group in groups]
        for group, stop in zip(groups, [*starts[1:], self.header.size_bytes], strict=False):
            yield CopyRun(tuple(group), stop)

    def begin(self) -> None:
        """Nothing of it is there, from now on."""
        self._num_bytes, self._failure = 0, None

    def reach(self, stop: int) -> None:
        """It is there up to this byte."""
        with self._moved:
            self._num_bytes = stop
            self._moved.notify_all()

    def fail(self, error: BaseException) -> None:
        """No more of it will come."""
        with self._moved:
            # Writers wait for this image; without a failure they would wait for ever.
            self._failure = error
            self._moved.notify_all()

    def wait_for(self, stop: int) -> None:
        """Return once it is there up to this byte; for any thread. Raises what it failed with, if it did before."""
        with self._moved:
            self._moved.wait_for(lambda: self._num_bytes >= stop or self._failure is not None)
            if self._num_bytes < stop and self._failure is not None:
                raise self._failure

    @property
    def data(self) -> memoryview:
        """The file's bytes; only what `wait_for` has returned for may be used."""
        return self._bytes.numpy().data

    def view(self) -> memoryview:
        """The file's bytes, once all are there."""
        self.wait_for(self.header.size_bytes)
        return self.data
