"""Reading: any boxes of a checkpoint's tensors, whatever boxes they were written in, in one pass from bytes to tensors.

Only files that hold a part of what is wanted are read, and of them only the rows that are wanted, in whole blocks. No
tensor has a byte whose digest was not compared first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headway.data_contracts.store.documents import CheckpointManifest, TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint import layout
from headway.training.checkpoint.layout import Entry
from headway.training.checkpoint.plan import size_bytes
from headway.training.checkpoint.verified_files import BlockReader, nothing, read_manifest, require_described


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint, and what was read of it, all of which was checked, on the CPU."""

    directory: Path
    manifest: CheckpointManifest
    tensors: dict[str, Tensor]
    proof_batch: dict[str, Tensor]
    """Empty where its file is not of the share that was read."""


class DoesNotFit(IntegrityError):
    """The checkpoint may be good; it is another model's."""


def whole(manifest: CheckpointManifest, prefix: str = "") -> tuple[TensorSlice, ...]:
    """Every tensor whose name begins with `prefix`, undivided: what one process wants."""
    return tuple(
        pieces[0].model_copy(update={"offsets": (0,) * len(pieces[0].global_shape), "shape": pieces[0].global_shape})
        for name, pieces in layout.by_tensor(manifest.layout).items()
        if name.startswith(prefix)
    )


def read_checkpoint(
    directory: Path,
    manifest: CheckpointManifest | None = None,
    *,
    wanted: Iterable[TensorSlice] | None = None,
    prefix: str = "",
    rest: Collection[str] | None = None,
    share: slice = slice(None),
    on_part: Callable[[], None] = nothing,
) -> VerifiedCheckpoint:
    """The boxes `wanted` of a checkpoint, on the CPU, whatever mesh wrote it: every byte checked, every number finite.

    One pass: each file is read once, in its own order; a block's digest is compared before any of it is used.

    Args:
        manifest: of the folder; None: read here.
        wanted: at most one box a tensor, whose `file` is not looked at; None: whole tensors.
        prefix: of the names of those.
        rest: the tensors that are read and verified besides, and forgotten; None: all.
        share: the files to look into, so that several ranks read each of them once.
        on_part: called after each part that is read.

    Raises:
        DoesNotFit: before anything is read, the checkpoint has no such tensor.
        BlockMissing: naming the first file that is missing.
        IntegrityError: naming the first file or tensor that is extra, altered or not finite.
    """
    manifest = manifest or read_manifest(directory)
    boxes = {box.tensor: box for box in (whole(manifest, prefix) if wanted is None else wanted)}
    # Before reading: a model that does not fit is the user's mistake, and costs no read of gigabytes.
    _require_fit(manifest, boxes.values())
    require_described(directory, manifest)
    slices: dict[str, list[TensorSlice]] = {file.name: [] for file in manifest.files}
    for piece in manifest.layout:
        slices[piece.file].append(piece)
    # Allocated before reading: a checkpoint that does not fit into memory fails at once.
    tensors = {name: torch.empty(box.shape, dtype=getattr(torch, box.dtype)) for name, box in boxes.items()}
    proof_batch: dict[str, Tensor] = {}
    scratch = _Scratch()

    def is_read(piece: TensorSlice) -> bool:
        if piece.tensor in boxes:
            return _common(piece, boxes[piece.tensor]) is not None
        return rest is None or piece.tensor in rest

    for file in manifest.files[share]:
        pieces, is_proof = slices[file.name], file.name == manifest.proof.file
        # A file of which nothing is wanted need not be opened, unless all is to be verified.
        if not (is_proof or rest is None or any(map(is_read, pieces))):
            continue
        with BlockReader(directory, file, on_part=on_part) as reader:
            entries = reader.entries(None if is_proof else pieces)
            if is_proof:
                for name, entry in entries.items():
                    proof_batch[name] = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
                    reader.read_into(entry.start, bytes_of(proof_batch[name]))
                continue
            # In the file's order, so that each block is read and digested once.
            for piece in sorted(filter(is_read, pieces), key=lambda piece: entries[piece.tensor].start):
                name, entry = piece.tensor, entries[piece.tensor]
                if name in boxes:
                    _read_slice(reader, entry, piece, boxes[name], tensors[name])
                else:
                    # One buffer for all: what is only verified must not need memory for a second model.
                    value = scratch.tensor(piece)
                    reader.read_into(entry.start, bytes_of(value))
                    _require_finite(name, value, directory)
    for name, value in tensors.items():
        _require_finite(name, value, directory)
    return VerifiedCheckpoint(directory, manifest, tensors, proof_batch)


def verify_checkpoint(
    directory: Path, *, share: slice = slice(None), on_part: Callable[[], None] = nothing
) -> CheckpointManifest:
    """The manifest of a checkpoint that is whole, unaltered and finite; nothing else is kept in memory.

    Args and errors as of `read_checkpoint`.
    """
    return read_checkpoint(directory, wanted=(), share=share, on_part=on_part).manifest


def _require_fit(manifest: CheckpointManifest, wanted: Iterable[TensorSlice]) -> None:
    """Raises `DoesNotFit`: a tensor that is wanted is not in the checkpoint, or of another shape or type."""
    known = {piece.tensor: (piece.global_shape, piece.dtype) for piece in manifest.layout}
    for box in wanted:
        if known.get(box.tensor) != (box.global_shape, box.dtype):
            raise DoesNotFit(
                f"tensor {box.tensor} is wanted as {box.dtype} {list(box.global_shape)}, "
                f"and the checkpoint has {_described(known.get(box.tensor))}.",
                where=f"checkpoint of step {manifest.step}",
                advice="The model is not the one that was saved.",
            )


def _described(known: tuple[tuple[int, ...], str] | None) -> str:
    return "none of that name" if known is None else f"{known[1]} {list(known[0])}"


class _Scratch:
    """Memory for what is read, checked and forgotten."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def tensor(self, piece: TensorSlice) -> Tensor:
        num_bytes = size_bytes(piece)
        # It grows and never shrinks; the largest tensor decides.
        if self._bytes.numel() < num_bytes:
            self._bytes = torch.empty(num_bytes, dtype=torch.uint8)
        return self._bytes[:num_bytes].view(getattr(torch, piece.dtype)).view(piece.shape)


def is_finite(value: Tensor) -> bool:
    if not value.is_floating_point():
        return True
    # torch promotes no 8-bit floats.
    if value.element_size() == 1:
        value = value.float()
    # Summed in float32 at least: in fp16 a sum of finite numbers would overflow.
    wide = torch.promote_types(value.dtype, torch.float32)
    # A finite sum proves it, at a tenth of the price; an infinite one may also come of large numbers.
    return math.isfinite(float(value.sum(dtype=wide))) or bool(torch.isfinite(value).all())


def _require_finite(name: str, value: Tensor, directory: Path) -> None:
    if not is_finite(value):
        raise IntegrityError(f"tensor {name} has values that are not finite.", where=str(directory))


def _read_slice(reader: BlockReader, entry: Entry, piece: TensorSlice, box: TensorSlice, target: Tensor) -> None:
    """Copy what `piece` and `box` have in common, reading whole rows of the piece."""
    common = _common(piece, box)
    if common is None:
        return
    inside = tuple(slice(low - offset, high - offset) for (low, high), offset in zip(common, box.offsets, strict=True))
    place = target[inside]
    rows = [(low - offset, high - offset) for (low, high), offset in zip(common, piece.offsets, strict=True)]
    row_bytes = (entry.stop - entry.start) // max(1, piece.shape[0] if piece.shape else 1)
    start = entry.start + (rows[0][0] * row_bytes if rows else 0)
    # Whole rows are one run of bytes, read straight into the target; columns need a copy.
    are_whole = all(row == (0, length) for row, length in zip(rows[1:], piece.shape[1:], strict=True))
    if are_whole and place.is_contiguous():
        reader.read_into(start, bytes_of(place))
        return
    read = torch.empty((rows[0][1] - rows[0][0], *piece.shape[1:]), dtype=target.dtype)
    reader.read_into(start, bytes_of(read))
    place.copy_(read[(slice(None), *(slice(low, high) for low, high in rows[1:]))])


def _common(a: TensorSlice, b: TensorSlice) -> list[tuple[int, int]] | None:
    """What two boxes have in common, as [low, high) of every dimension; None: nothing."""
    edges = [
        (max(start_a, start_b), min(start_a + length_a, start_b + length_b))
        for start_a, length_a, start_b, length_b in zip(a.offsets, a.shape, b.offsets, b.shape, strict=True)
    ]
    return edges if all(low < high for low, high in edges) else None


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
