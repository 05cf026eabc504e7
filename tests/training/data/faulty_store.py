"""A store that is remote by name and a folder in truth, so that other processes see it too; it fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

PROTOCOL = "faulty"
Fault = Callable[[str, bytes], bytes]
"""Given path and true bytes of a read, gives the bytes to serve, or raises."""


class FaultyFileSystem(LocalFileSystem):
    protocol = PROTOCOL
    cachable = False
    faults: ClassVar[list[Fault]] = []
    """For the next reads, one each; then all is well."""
    num_reads: ClassVar[int] = 0
    on_read: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix(f"{PROTOCOL}://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        FaultyFileSystem.num_reads += 1
        FaultyFileSystem.on_read()
        data: bytes = super().cat_file(path, start=start, end=end, **kwargs)
        return self.faults.pop(0)(path, data) if self.faults else data


def register() -> None:
    fsspec.register_implementation(PROTOCOL, FaultyFileSystem, clobber=True)
    FaultyFileSystem.faults.clear()
    FaultyFileSystem.num_reads = 0
    FaultyFileSystem.on_read = staticmethod(lambda: None)


def raising(error: Exception) -> Fault:
    def fail(path: str, data: bytes) -> bytes:
        raise error

    return fail


def flipped(path: str, data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def shortened(path: str, data: bytes) -> bytes:
    return data[:-1]
