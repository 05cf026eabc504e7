"""Which tensors of two checkpoints differ, and by how much: read one by one, every byte checked first."""

from __future__ import annotations

from pathlib import Path

import torch

from headway.training.checkpoint.layout import TensorDifference
from headway.training.checkpoint.read import read_tensors, whole
from headway.training.checkpoint.verify import verify_checkpoint


def tensor_differences(theirs: Path, ours: Path) -> list[TensorDifference]:
    """Tensors that differ in a bit, in any of the two folders' order.

    Raises:
        IntegrityError: a file of one of the two is gone or altered.
    """
    folders = (theirs, ours)
    manifests = [verify_checkpoint(folder) for folder in folders]
    boxes = [{box.tensor: box for box in whole(manifest)} for manifest in manifests]
    found = []
    for name in sorted(boxes[0].keys() | boxes[1].keys()):
        pair = [each.get(name) for each in boxes]
        # The file is where it lies, which two checkpoints may do differently.
        if None in pair or pair[0].model_copy(update={"file": ""}) != pair[1].model_copy(update={"file": ""}):  # type: ignore[union-attr]
            found.append(TensorDifference(tensor=name, num_values=0, num_differing=0, largest=None))
            continue
        first, second = (
            read_tensors(folder, manifest, [box])[name]  # type: ignore[list-item]
            for folder, manifest, box in zip(folders, manifests, pair, strict=True)
        )
        width = first.element_size()
        # Bits, not values: NaN differs from itself, and 0.0 equals -0.0.
        bits = [value.reshape(-1).view(torch.uint8).reshape(-1, width) for value in (first, second)]
        num_differing = int((bits[0] != bits[1]).any(dim=1).sum()) if first.numel() else 0
        if num_differing:
            largest = float((first.double() - second.double()).abs().max())
            found.append(
                TensorDifference(tensor=name, num_values=first.numel(), num_differing=num_differing, largest=largest)
            )
    return found
