"""Reading: any boxes of a checkpoint's tensors, whatever boxes they were written in.

Only files that hold a part of what is wanted are read, and of them only the rows that are wanted, in whole blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headway.data_contracts.store.documents import CheckpointFile, CheckpointManifest, TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint import layout
from headway.training.checkpoint.blocks import BlockReader, nothing
from headway.training.checkpoint.layout import Entry
from headway.training.checkpoint.plan import size_bytes

Rest = Literal["skip", "check"]
"""What is not wanted: not looked at, or read, verified and forgotten."""


def whole(manifest: CheckpointManifest, prefix: str = "") -> tuple[TensorSlice, ...]:
    """Every tensor whose name begins with `prefix`, undivided: what one process wants."""
    return tuple(
        pieces[0].model_copy(update={"offsets": (0,) * len(pieces[0].global_shape), "shape": pieces[0].global_shape})
        for name, pieces in layout.by_tensor(manifest.layout).items()
        if name.startswith(prefix)
    )


def require_fit(manifest: CheckpointManifest, wanted: Iterable[TensorSlice]) -> None:
    """Raises `IntegrityError`: a tensor that is wanted is not in the checkpoint, or of another shape or type."""
    known = {piece.tensor: (piece.global_shape, piece.dtype) for piece in manifest.layout}
    for box in wanted:
        if known.get(box.tensor) != (box.global_shape, box.dtype):
            raise IntegrityError(
                f"tensor {box.tensor} is wanted as {box.dtype} {list(box.global_shape)}, "
                f"and the checkpoint has {_described(known.get(box.tensor))}.",
                where=f"checkpoint of step {manifest.step}",
                advice="The model is not the one that was saved.",
            )


def read_tensors(
    directory: Path,
    manifest: CheckpointManifest,
    wanted: Iterable[TensorSlice],
    *,
    rest: Rest = "skip",
    checked: Collection[str] | None = None,
    files: Collection[CheckpointFile] | None = None,
    on_part: Callable[[], None] = nothing,
) -> dict[str, Tensor]:
    """The boxes `wanted` of a checkpoint, at most one a tensor, on the CPU; every byte checked, every number finite.

    Args:
        wanted: their `file` is not looked at.
        rest: what becomes of all else.
        checked: the tensors among it that are to be checked; of others only the headers are. None: all.
        files: the only ones to look into; None: all that the manifest lists.
        on_part: called after each part that is read.

    Raises:
        IntegrityError: naming the file or tensor that is missing, altered, or not finite.
    """
    boxes = {box.tensor: box for box in wanted}
    # Allocated before reading: a checkpoint that does not fit fails at once.
    tensors = {name: torch.empty(box.shape, dtype=getattr(torch, box.dtype)) for name, box in boxes.items()}
    scratch = _Scratch()
    # The proof batch holds no part of the model; it is read apart.
    slices: dict[str, list[TensorSlice]] = {
        file.name: [] for file in manifest.files if file.name != manifest.proof.file
    }
    for piece in manifest.layout:
        slices[piece.file].append(piece)
    for file in manifest.files if files is None else files:
        pieces = slices.get(file.name, ())
        is_wanted = any(piece.tensor in boxes and _common(piece, boxes[piece.tensor]) is not None for piece in pieces)
        # A file of which nothing is wanted need not be opened, unless all is to be verified.
        if not is_wanted and (rest == "skip" or file.name not in slices):
            continue
        with BlockReader(directory, file, on_part=on_part) as reader:
            entries = reader.entries()
            check_entries(entries, pieces, str(directory / file.name))
            # In the file's order, so that each block is read and digested once.
            for piece in sorted(pieces, key=lambda piece: entries[piece.tensor].start):
                if piece.tensor in boxes:
                    _read_slice(reader, entries[piece.tensor], piece, boxes[piece.tensor], tensors[piece.tensor])
                elif rest == "check" and (checked is None or piece.tensor in checked):
                    # One buffer for all: what is only verified must not need memory for a second model.
                    value = scratch.tensor(piece)
                    reader.read_into(entries[piece.tensor].start, bytes_of(value))
                    _require_finite(piece.tensor, value, directory)
    for name, value in tensors.items():
        _require_finite(name, value, directory)
    return tensors


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


def read_file(directory: Path, file: CheckpointFile, *, on_part: Callable[[], None] = nothing) -> dict[str, Tensor]:
    """All that one file holds, whatever that is.

    Raises:
        IntegrityError: missing or altered.
    """
    with BlockReader(directory, file, on_part=on_part) as reader:
        tensors = {}
        for name, entry in sorted(reader.entries().items(), key=lambda item: item[1].start):
            tensors[name] = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            reader.read_into(entry.start, bytes_of(tensors[name]))
        return tensors


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


def check_entries(entries: Mapping[str, Entry], slices: Iterable[TensorSlice], where: str) -> None:
    """Raises `IntegrityError`: the file lacks a slice, holds one of another shape or type, or holds more."""
    listed = {piece.tensor: (piece.dtype, piece.shape) for piece in slices}
    for name in sorted(listed.keys() | entries.keys()):
        if name not in listed:
            raise IntegrityError(f"holds {name}, which the layout does not list.", where=where)
        if name not in entries or (entries[name].dtype, entries[name].shape) != listed[name]:
            raise IntegrityError(f"does not hold {name} as the layout says.", where=where)


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


def _described(known: tuple[tuple[int, ...], str] | None) -> str:
    return "none of that name" if known is None else f"{known[1]} {list(known[0])}"
