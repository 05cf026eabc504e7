"""A save whose attempt is over when it comes to give its files their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data_contracts.errors import Superseded
from tests.training.attempts import begin
from tests.training.checkpoint.test_save import ALONE
from training.checkpoint.layout import MANIFEST_NAME, PROOF_NAME, SEAL_NAME, committed_steps
from training.checkpoint.save import Checkpointer
from training.result import publish_result

FILES = ("tensors-00000-of-00001.safetensors", PROOF_NAME, SEAL_NAME, MANIFEST_NAME)


@pytest.mark.parametrize("name", [*FILES, "result.json"])
def test_a_rename_that_comes_too_late_publishes_nothing_whoever_looked_before(
    tmp_path: Path, content, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The next attempt begins between the last look and the rename."""
    mandate, real = begin(tmp_path, 1), Path.replace

    def replace(path: Path, target: Path) -> Path:
        if Path(target).name == name:
            begin(tmp_path, 2)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    checkpoints = tmp_path / "checkpoints"
    with (
        pytest.raises(Superseded, match="attempt 2 has begun"),
        Checkpointer(checkpoints, ALONE, mandate=mandate) as checkpointer,
    ):
        checkpointer.save(content(3, {"w": torch.ones(5)}))
        newest = checkpointer.finish()
        assert newest is not None
        publish_result(tmp_path, newest.run, newest, [], mandate)

    published = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert name not in published
    # The first two are written side by side.
    assert published.isdisjoint(FILES[max(2, FILES.index(name)) :]) if name in FILES else published == set(FILES)
    assert committed_steps(checkpoints) == ([3] if name == "result.json" else [])


def test_who_is_superseded_clears_no_place_for_a_checkpoint(tmp_path: Path, content) -> None:
    with Checkpointer(tmp_path / "checkpoints", ALONE, mandate=begin(tmp_path, 1)) as checkpointer:
        checkpointer.save(content(3, {"w": torch.ones(5)}))
        checkpointer.finish()
        begin(tmp_path, 2)
        with pytest.raises(Superseded):
            checkpointer.save(content(3, {"w": torch.ones(5)}))
    assert committed_steps(tmp_path / "checkpoints") == [3]
