"""A checkpoint's files: every byte is checked against the manifest before it is given out.

What is hashed is what is then used: the same bytes in memory, so nothing can change in between. Names, shapes and bytes
only: no torch, so that a flow may read here too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import CheckpointFile, CheckpointManifest, TensorSlice
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.regular_files import open_unbuffered, read_regular
from headway.training.checkpoint import layout
from headway.training.checkpoint.layout import LENGTH_BYTES, MAX_HEADER_BYTES, Entry, parse_header

READ_BYTES = 64 << 20
"""At most so many in one call."""


def nothing() -> None:
    """For who need not be told."""


NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class BlockMissing(IntegrityError):
    """No such file, as far as this rank sees: it has read no wrong byte."""


def unreadable(path: Path, error: OSError) -> EnvironmentProblem:
    """A disk or a mount that gives no answer says nothing about the bytes: nothing is to be quarantined for it."""
    return EnvironmentProblem(
        f"cannot be read ({error.strerror}).",
        where=str(path),
        advice="See to the disk or the mount; the checkpoint was left where it is.",
    )


def read_manifest(directory: Path) -> CheckpointManifest:
    """The manifest alone, checked against its seal and the folder's name; the files are not looked at.

    Raises:
        BlockMissing: missing.
        IntegrityError: altered, or moved here from another step.
    """
    path = directory / layout.MANIFEST_NAME
    data = _read(path)
    # The seal is checked before the manifest is parsed: parsing decides what is believed afterwards.
    if _read(directory / layout.SEAL_NAME) != f"{sha256_bytes(data)}\n".encode():
        raise IntegrityError("its bytes differ from the digest in manifest.sha256.", where=str(path))
    manifest = CheckpointManifest.from_bytes(data, where=str(path))
    # A whole folder may have been copied over another step's; every digest inside would still agree.
    if layout.step_of(directory.name) != manifest.step:
        raise IntegrityError(f"it is the manifest of step {manifest.step}.", where=str(path))
    return manifest


def require_described(directory: Path, manifest: CheckpointManifest) -> None:
    """The folder holds what the manifest lists, and its slices make up whole tensors.

    Raises:
        BlockMissing: a file is missing, or the folder.
        IntegrityError: a file does not belong there, or the manifest contradicts itself.
    """
    expected = {file.name for file in manifest.files} | {layout.MANIFEST_NAME, layout.SEAL_NAME}
    try:
        # Names first: a file too many or too few shows without reading a byte.
        actual = {path.name for path in directory.iterdir()}
    except NO_FILE as error:
        raise BlockMissing(f"not a folder ({error.strerror}).", where=str(directory)) from error
    if missing := sorted(expected - actual):
        raise BlockMissing("the file is missing.", where=str(directory / missing[0]))
    # Whatever was added could be taken for part of it by another tool.
    if extra := sorted(actual - expected):
        raise IntegrityError("the file does not belong to this checkpoint.", where=str(directory / extra[0]))
    try:
        # No part of the model lies in the proof batch's file, which is read for itself.
        layout.check_layout(manifest.layout, {file.name for file in manifest.files} - {manifest.proof.file})
    except IntegrityError as error:
        raise IntegrityError(error.what, where=f"{directory}: {error.where}") from error
    if all(file.name != manifest.proof.file for file in manifest.files):
        raise IntegrityError("the manifest lists no proof batch.", where=str(directory))


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except NO_FILE as error:
        raise BlockMissing(f"not a file ({error.strerror}).", where=str(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error


class BlockReader:
    """A safetensors file of a checkpoint, every byte of which is checked before it is given out.

    Args:
        on_part: called after each part that is read.

    Raises:
        BlockMissing: on opening, the file is missing.
        IntegrityError: on opening, the file is of another size; on reading, it differs from its manifest.
    """

    def __init__(self, directory: Path, file: CheckpointFile, *, on_part: Callable[[], None] = nothing) -> None:
        self._path, self._size_bytes, self._on_part = directory / file.name, file.size_bytes, on_part
        self._digests, self._block_bytes = file.blocks, file.block_bytes
        # Before anything is read: a manifest whose blocks do not cover the file would leave bytes unchecked.
        if self._block_bytes * (len(self._digests) - 1) >= max(1, file.size_bytes) or (
            self._block_bytes * len(self._digests) < file.size_bytes
        ):
            raise self._bad("the blocks in its manifest do not make up its size.")
        self._held, self._held_index = memoryview(b""), -1
        try:
            # Unbuffered: a buffer would read bytes of the next block, which are then read again and checked again.
            self._file = open_unbuffered(self._path)
        except NO_FILE as error:
            raise BlockMissing(f"not a file ({error.strerror}).", where=str(self._path)) from error
        except OSError as error:
            raise unreadable(self._path, error) from error
        if (actual := os.fstat(self._file.fileno()).st_size) != file.size_bytes:
            self._file.close()
            raise self._bad(f"{actual} bytes; its manifest says {file.size_bytes} bytes.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._file.close()

    def entries(self, slices: Iterable[TensorSlice] | None = None) -> dict[str, Entry]:
        """What the file holds, by name, in its own order.

        Args:
            slices: what it has to hold, no more and no less; None: anything.

        Raises:
            IntegrityError: not safetensors, or it holds something else.
        """
        length = int.from_bytes(self._read(0, min(LENGTH_BYTES, self._size_bytes)), "little")
        # The length comes from the file; without this bound a flipped bit could ask for gigabytes.
        if length > min(MAX_HEADER_BYTES, self._size_bytes - LENGTH_BYTES):
            raise self._bad("not readable as safetensors (the header is longer than the file).")
        try:
            entries = parse_header(self._read(LENGTH_BYTES, LENGTH_BYTES + length))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._bad(f"not readable as safetensors ({error}).") from error
        # Bytes behind the last tensor are no tensor's, and no digest of a slice would cover them.
        if max((entry.stop for entry in entries.values()), default=LENGTH_BYTES + length) != self._size_bytes:
            raise self._bad("not readable as safetensors (its tensors do not fill it).")
        if slices is not None:
            self._require(entries, {piece.tensor: (piece.dtype, piece.shape) for piece in slices})
        return entries

    def _require(self, entries: Mapping[str, Entry], listed: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        for name in sorted(listed.keys() | entries.keys()):
            if name not in listed:
                raise self._bad(f"holds {name}, which the layout does not list.")
            if name not in entries or (entries[name].dtype, entries[name].shape) != listed[name]:
                raise self._bad(f"does not hold {name} as the layout says.")

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `start` on, by whole blocks; reading in order, each is read once."""
        position, stop = start, start + len(target)
        while position < stop:
            index = position // self._block_bytes
            begin = index * self._block_bytes
            end = min(begin + self._block_bytes, self._size_bytes)
            # A whole block goes straight to its place; only parts of blocks pass through a copy.
            if index != self._held_index and begin == position and end <= stop:
                self._fetch(index, begin, target[begin - start : end - start])
                position = end
                continue
            if index != self._held_index:
                block = memoryview(bytearray(end - begin))
                self._fetch(index, begin, block)
                # One block is held: neighbouring tensors share it, and it is read and digested once.
                self._held, self._held_index = block, index
            taken = min(end, stop)
            target[position - start : taken - start] = self._held[position - begin : taken - begin]
            position = taken

    def _read(self, start: int, stop: int) -> bytes:
        data = bytearray(stop - start)
        self.read_into(start, memoryview(data))
        return bytes(data)

    def _fetch(self, index: int, begin: int, block: memoryview) -> None:
        filled = 0
        try:
            while filled < len(block):
                part = block[filled : filled + READ_BYTES]
                # `preadv` fills the caller's memory, so the digest is of the very bytes that are then used.
                if not (got := os.preadv(self._file.fileno(), [part], begin + filled)):
                    break
                filled += got
                self._on_part()
        except OSError as error:
            raise unreadable(self._path, error) from error
        digest = xxhash.xxh3_128_hexdigest(block) if filled == len(block) else "shorter than it was"
        if digest != self._digests[index]:
            raise self._bad(
                f"block {index} (from byte {begin}) is {digest[:12]}; its manifest says {self._digests[index][:12]}."
            )

    def _bad(self, what: str) -> IntegrityError:
        return IntegrityError(what, where=str(self._path))
