"""Which tensors of two checkpoints differ, and by how much: both are read once, every byte checked first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from headway.data_contracts.store.documents import TensorSlice
from headway.training.checkpoint.layout import TensorDifference
from headway.training.checkpoint.plan import size_bytes
from headway.training.checkpoint.read import read_checkpoint, whole
from headway.training.checkpoint.verified_files import read_manifest

GROUP_BYTES = 256 << 20
"""Of each checkpoint, so many are in memory at a time, or one tensor. Tensor by tensor, small ones would each cost the
read of the block that they share with others."""


def tensor_differences(theirs: Path, ours: Path) -> list[TensorDifference]:
    """Tensors that differ in a bit, by name.

    Raises:
        IntegrityError: a file of one of the two is gone or altered.
    """
    folders = [(folder, read_manifest(folder)) for folder in (theirs, ours)]
    # The file is where it lies, which two checkpoints may do differently.
    first, second = (
        {box.tensor: box.model_copy(update={"file": ""}) for box in whole(manifest)} for _, manifest in folders
    )
    both = [box for name, box in first.items() if second.get(name) == box]
    others = (first.keys() | second.keys()) - {box.tensor for box in both}
    found = [TensorDifference(tensor=name, num_values=0, num_differing=0, largest=None) for name in others]
    for group in _groups(both):
        # Those that are compared with nothing are verified all the same, with the first group.
        pair = [read_checkpoint(*each, wanted=group, rest=others).tensors for each in folders]
        found += filter(None, (_difference(box.tensor, *(each[box.tensor] for each in pair)) for box in group))
        others = set()
    return sorted(found, key=lambda each: each.tensor)


def _groups(boxes: Iterable[TensorSlice]) -> Iterator[list[TensorSlice]]:
    """In the order of every file, widest elements first, so that groups share few blocks; at least one."""
    group: list[TensorSlice] = []
    group_bytes = 0
    for box in sorted(boxes, key=lambda box: (-getattr(torch, box.dtype).itemsize, box.tensor)):
        if group and group_bytes + size_bytes(box) > GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append(box)
        group_bytes += size_bytes(box)
    yield group


def _difference(name: str, first: Tensor, second: Tensor) -> TensorDifference | None:
    width = first.element_size()
    # Bits, not values: NaN differs from itself, and 0.0 equals -0.0.
    bits = [value.reshape(-1).view(torch.uint8).reshape(-1, width) for value in (first, second)]
    num_differing = int((bits[0] != bits[1]).any(dim=1).sum()) if first.numel() else 0
    if not num_differing:
        return None
    largest = float((first.double() - second.double()).abs().max())
    return TensorDifference(tensor=name, num_values=first.numel(), num_differing=num_differing, largest=largest)
