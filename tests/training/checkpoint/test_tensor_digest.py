"""The digest of all tensors, from the files alone: the one that a run's result carries, however they are sliced."""

from __future__ import annotations

import pytest
import torch

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.pieces import Piece
from headway.training.checkpoint.tensor_digest import stored_tensors_sha256
from headway.training.frozen.result import tensors_sha256
from tests.training.checkpoint.conftest import save_checkpoint

WHOLE = {
    "model.columns": torch.arange(48, dtype=torch.float32).reshape(6, 8),
    "model.rows": torch.arange(30).reshape(10, 3).bfloat16(),
    "model.scalar": torch.tensor(7),
    "model.empty": torch.empty(0, 4),
}


def of_rank(rank: int) -> dict[str, torch.Tensor | Piece]:
    columns = Piece(
        local=WHOLE["model.columns"][:, 4 * rank : 4 * rank + 4], global_shape=(6, 8), offsets=(0, 4 * rank)
    )
    rows = Piece(local=WHOLE["model.rows"][5 * rank : 5 * rank + 5], global_shape=(10, 3), offsets=(5 * rank, 0))
    return {**WHOLE, "model.columns": columns, "model.rows": rows}


def test_it_is_the_results_own_however_tensors_are_sliced(tmp_path, in_gang, content):
    for size, state in ((1, lambda _rank: WHOLE), (2, lambda _rank: WHOLE), (2, of_rank)):
        folder = tmp_path / f"{size}-{state.__name__}"

        def save(process_group, to=folder, of=state):
            return save_checkpoint(to, content(1, of(process_group.rank)), process_group)

        manifest = in_gang(size, save)[0]
        assert stored_tensors_sha256(folder / "step-00000001", manifest) == tensors_sha256(sorted(WHOLE.items()))


def test_files_that_do_not_hold_what_the_layout_says_are_named(tmp_path, in_gang, content):
    manifest = in_gang(1, lambda process_group: save_checkpoint(tmp_path, content(1, WHOLE), process_group))[0]
    directory = tmp_path / "step-00000001"
    first = manifest.layout[0].model_copy(update={"tensor": "model.none"})
    with pytest.raises(IntegrityError, match=r"does not hold model\.none as the layout says"):
        stored_tensors_sha256(directory, manifest.model_copy(update={"layout": (first, *manifest.layout[1:])}))
    path = directory / manifest.layout[0].file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(IntegrityError, match="not readable as safetensors"):
        stored_tensors_sha256(directory, manifest)
