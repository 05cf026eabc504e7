"""Table files opened for reading: decompressed by their name, and never to many times what lies on the disk."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
MAX_EXPANSION = 100
"""How many bytes may come out of a compressed one, beyond the first `FREE_BYTES`. Tables give 3 to 30."""
FREE_BYTES = 32 << 20
CHUNK_BYTES = 4 << 20
on_read: list[Callable[[], object]] = []
"""Called whenever a reader wants more of a file: it is alive, and gets on."""


@contextlib.contextmanager
def opened(path: Path, where: str) -> Iterator[Any]:
    """An Arrow stream of the file's bytes; compressed ones by the suffix of `where`.

    Raises:
        DataError: so much comes out of so little that it is no table. OSError and ArrowException: as Arrow reads.
    """
    import pyarrow as pa

    compression = COMPRESSIONS.get(Path(where).suffix) or COMPRESSIONS.get(path.suffix)
    if compression is not None:
        # What expands from its start on is refused before a parser has met a row of it.
        with pa.OSFile(str(path)) as raw:
            probe = _Bounded(pa.CompressedInputStream(raw, compression), raw, where)
            while probe.num_bytes <= FREE_BYTES and probe.read(CHUNK_BYTES):
                pass
    with pa.OSFile(str(path)) as raw:
        inner = raw if compression is None else pa.CompressedInputStream(raw, compression)
        with pa.PythonFile(_Bounded(inner, raw, where), mode="r") as stream:
            yield stream


class ReadByBytes(io.RawIOBase):
    """What says what it has by `read`, also for whoever brings a buffer."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Bounded(ReadByBytes):
    def __init__(self, inner: Any, raw: Any, where: str) -> None:
        self._inner, self._raw, self._where = inner, raw, where
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        for tell in on_read:
            tell()
        data: bytes = self._inner.read(size)
        self.num_bytes += len(data)
        if self.num_bytes > FREE_BYTES and self.num_bytes > MAX_EXPANSION * self._raw.tell():
            raise DataError(
                f"it decompresses to more than {MAX_EXPANSION} times its size: {self.num_bytes:,} bytes came out of "
                f"the first {self._raw.tell():,}.",
                where=self._where,
                advice="If these are data, store them decompressed, or as Parquet.",
            )
        return data
