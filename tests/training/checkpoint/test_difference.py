"""Which tensors of two checkpoints differ: by bits, by how much, whatever ranks wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint import blocks, difference
from headway.training.checkpoint.difference import tensor_differences
from headway.training.checkpoint.layout import directory_name
from headway.training.ranks.distributed import ProcessGroup
from tests.training.checkpoint.conftest import save_checkpoint

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))


def saved(folder: Path, content: Any, **changes: torch.Tensor) -> Path:
    tensors = {
        "model.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
        "model.half": torch.ones(5, dtype=torch.bfloat16),
        "model.scale": torch.tensor(0.0),
        "model.counts": torch.arange(3),
    }
    save_checkpoint(folder, content(4, tensors | changes), ALONE)
    return folder / directory_name(4)


def told(theirs: Path, ours: Path) -> list[tuple[str, int, int, float | None]]:
    found = tensor_differences(theirs, ours)
    return [(each.tensor, each.num_values, each.num_differing, each.largest) for each in found]


def test_equal_tensors_differ_in_nothing_though_other_files_hold_them(tmp_path: Path, content: Any) -> None:
    first = saved(tmp_path / "a", content)
    assert told(first, first) == [] == told(first, saved(tmp_path / "b", content))


def test_every_tensor_that_differs_in_a_bit_is_told_with_how_many_values_and_by_how_much(
    tmp_path: Path, content: Any
) -> None:
    weight = torch.arange(12, dtype=torch.float32).view(3, 4)
    weight[1, 2] += 0.25
    weight[2, 3] -= 2.0
    half = torch.ones(5, dtype=torch.bfloat16)
    half[4] = 1.5
    ours = saved(tmp_path / "b", content, **{"model.weight": weight, "model.half": half})
    assert told(saved(tmp_path / "a", content), ours) == [("model.half", 5, 1, 0.5), ("model.weight", 12, 2, 2.0)]


def test_a_zero_of_another_sign_is_another_bit(tmp_path: Path, content: Any) -> None:
    ours = saved(tmp_path / "b", content, **{"model.scale": torch.tensor(-0.0)})
    assert told(saved(tmp_path / "a", content), ours) == [("model.scale", 1, 1, 0.0)]


def test_a_tensor_of_another_shape_and_one_that_only_one_has_are_told(tmp_path: Path, content: Any) -> None:
    changes = {"model.counts": torch.arange(4), "model.more": torch.ones(2)}
    ours = saved(tmp_path / "b", content, **changes)
    assert told(saved(tmp_path / "a", content), ours) == [("model.counts", 0, 0, None), ("model.more", 0, 0, None)]


def test_a_damaged_checkpoint_is_compared_with_nothing(tmp_path: Path, content: Any) -> None:
    first, second = saved(tmp_path / "a", content), saved(tmp_path / "b", content)
    tensors = next(second.glob("tensors-*"))
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.chmod(0o644)
    tensors.write_bytes(data)
    with pytest.raises(IntegrityError, match=tensors.name):
        tensor_differences(first, second)


def test_both_are_read_once_and_what_only_one_has_is_verified_too(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch, bytes_read: list[int]
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(difference, "GROUP_BYTES", 1024)
    small = {f"model.small.{index}": torch.full((3,), float(index)) for index in range(300)}
    folders = [saved(tmp_path / "a", content, **small), saved(tmp_path / "b", content, **small)]
    size_bytes = sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors"))
    assert told(*folders) == []
    assert sum(bytes_read) <= 8 * size_bytes, "a group reads a header again, a tensor does not"

    only_one_has_it = saved(tmp_path / "c", content, **{"model.zzz": torch.ones(2)})
    tensors = next(only_one_has_it.glob("tensors-*"))
    data = bytearray(tensors.read_bytes())
    data[data.rindex(torch.ones(2).numpy().tobytes())] ^= 1
    tensors.chmod(0o644)
    tensors.write_bytes(data)
    with pytest.raises(IntegrityError, match=tensors.name):
        tensor_differences(folders[0], only_one_has_it)
