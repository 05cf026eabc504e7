"""The digest of all tensors that a run's result carries, worked out anew from a checkpoint's files, without torch.

It has to equal `tensors_sha256` of `training/frozen/result.py`. One tensor at most is held in memory, and none that
lies in one piece.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.store.digests import CHUNK_BYTES, opened
from headway.data_contracts.store.documents import CheckpointManifest, TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.layout import (
    DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    Entry,
    by_tensor,
    check_layout,
    parse_header,
)

if TYPE_CHECKING:
    from io import FileIO


def stored_tensors_sha256(directory: Path, manifest: CheckpointManifest) -> str:
    """
    Args:
        directory: holds the checkpoint's files, whose digests were checked.

    Raises:
        IntegrityError: the files do not hold what the manifest's layout says.
    """
    check_layout(manifest.layout, {file.name for file in manifest.files})
    entries = {name: _entries(directory / name) for name in {piece.file for piece in manifest.layout}}
    digest = hashlib.sha256()
    # Sorted by name: a digest must not depend on the mesh that wrote the files.
    for name, pieces in sorted(by_tensor(manifest.layout).items()):
        for piece in pieces:
            found = entries[piece.file].get(name)
            if found is None or (found.dtype, found.shape) != (piece.dtype, piece.shape):
                where = str(directory / piece.file)
                raise IntegrityError(f"does not hold {name} as the layout says.", where=where)
        # The header separates tensors: without it bytes could move from one to the next unnoticed.
        digest.update(f"{name} torch.{pieces[0].dtype} {tuple(pieces[0].global_shape)}\n".encode())
        if len(pieces) == 1:
            # In parts: a tensor in one piece never lies in memory as a whole.
            for part in _parts(directory / pieces[0].file, entries[pieces[0].file][name]):
                digest.update(part)
        else:
            digest.update(_whole(directory, pieces, [entries[piece.file][name] for piece in pieces]))
    return digest.hexdigest()


def _entries(path: Path) -> dict[str, Entry]:
    with opened(path) as stream:
        size_bytes = stream.seek(0, 2)
        stream.seek(0)
        try:
            length = int.from_bytes(_read(stream, LENGTH_BYTES), "little")
            if length > min(MAX_HEADER_BYTES, size_bytes - LENGTH_BYTES):
                raise ValueError("the header is longer than the file")
            entries = parse_header(_read(stream, length))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IntegrityError(f"not readable as safetensors ({error}).", where=str(path)) from error
    if any(entry.stop > size_bytes for entry in entries.values()):
        raise IntegrityError("not readable as safetensors (it ends too soon).", where=str(path))
    return entries


def _read(stream: FileIO, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (part := stream.read(num_bytes - len(data))):
        data += part
    if len(data) < num_bytes:
        raise ValueError("it ends too soon")
    return data


def _parts(path: Path, entry: Entry) -> Iterator[bytes]:
    with opened(path) as stream:
        stream.seek(entry.start)
        left = entry.stop - entry.start
        while left and (part := stream.read(min(CHUNK_BYTES, left))):
            left -= len(part)
            yield part
    if left:
        raise IntegrityError("ends too soon.", where=str(path))


def _whole(directory: Path, pieces: Sequence[TensorSlice], entries: Sequence[Entry]) -> memoryview:
    """The bytes of a tensor that lies in several pieces."""
    import numpy as np

    # A type of plain bytes: values are only moved, and numpy has no bfloat16.
    value = np.empty(pieces[0].global_shape, dtype=f"V{DTYPES[pieces[0].dtype][1]}")
    for piece, entry in zip(pieces, entries, strict=True):
        part = np.frombuffer(bytearray().join(_parts(directory / piece.file, entry)), dtype=value.dtype)
        box = tuple(slice(low, low + length) for low, length in zip(piece.offsets, piece.shape, strict=True))
        # A piece without elements cannot be reshaped into its box.
        value[box] = part.reshape(piece.shape) if math.prod(piece.shape) else value[box]
    return value.reshape(-1).view(np.uint8).data
