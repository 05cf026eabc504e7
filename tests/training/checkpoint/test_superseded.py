"""A save whose attempt is over when it comes to give its files their names."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.errors import Superseded
from headway.training.checkpoint.commit import Commit, Part, part_name
from headway.training.checkpoint.layout import (
    MANIFEST_NAME,
    PROOF_NAME,
    SEAL_NAME,
    committed_steps,
    directory_name,
)
from headway.training.checkpoint.restore import TOKEN_PREFIX, require_shared
from headway.training.checkpoint.retention import abandon_after, discard_expired, discard_unfinished, sweep
from headway.training.checkpoint.save import Checkpointer
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.frozen.result import publish_result
from headway.training.launch.base.fence import AttemptFence
from tests.training.attempts import begin
from tests.training.checkpoint.conftest import save_checkpoint
from tests.training.checkpoint.test_save import ALONE, WITH_LOST_MATE, LostMates

FILES = ("tensors-00000-of-00001.safetensors", PROOF_NAME, SEAL_NAME, MANIFEST_NAME)


@pytest.mark.parametrize("name", [*FILES, "result.json"])
def test_a_rename_that_comes_too_late_publishes_nothing_whoever_looked_before(
    tmp_path: Path, content, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The next attempt begins between the last look and the rename."""
    fence, real = begin(tmp_path, 1), Path.replace

    def replace(path: Path, target: Path) -> Path:
        if Path(target).name == name:
            begin(tmp_path, 2)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    checkpoints = tmp_path / "checkpoints"
    with (
        pytest.raises(Superseded, match="attempt 2 has started"),
        Checkpointer(checkpoints, ALONE, fence=fence) as checkpointer,
    ):
        checkpointer.save(content(3, {"w": torch.ones(5)}))
        newest = checkpointer.finish()
        assert newest is not None
        publish_result(tmp_path, newest.run, newest, [], fence)

    published = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert name not in published
    # The first two are written side by side.
    assert published.isdisjoint(FILES[max(2, FILES.index(name)) :]) if name in FILES else published == set(FILES)
    assert committed_steps(checkpoints) == ([3] if name == "result.json" else [])


def test_who_is_superseded_clears_no_place_for_a_checkpoint(tmp_path: Path, content) -> None:
    with Checkpointer(tmp_path / "checkpoints", ALONE, fence=begin(tmp_path, 1)) as checkpointer:
        checkpointer.save(content(3, {"w": torch.ones(5)}))
        checkpointer.finish()
        begin(tmp_path, 2)
        with pytest.raises(Superseded):
            checkpointer.save(content(3, {"w": torch.ones(5)}))
    assert committed_steps(tmp_path / "checkpoints") == [3]


def test_who_is_superseded_begins_no_save_on_any_rank(tmp_path: Path, content) -> None:
    fence = begin(tmp_path, 1)
    mate = LostMates(rank=1, world_size=2, device=torch.device("cpu"))
    checkpointer = Checkpointer(tmp_path / "checkpoints", mate, fence=fence)
    begin(tmp_path, 2)
    with pytest.raises(Superseded):
        checkpointer.save(content(3, {"w": torch.ones(5)}))
    assert checkpointer.saved_step == 0


def test_who_is_superseded_takes_no_token_by_which_the_next_attempts_ranks_find_each_other(tmp_path: Path) -> None:
    fence, token = begin(tmp_path, 1), tmp_path / f"{TOKEN_PREFIX}next"
    begin(tmp_path, 2)
    token.touch()
    with pytest.raises(Superseded):
        require_shared(tmp_path, WITH_LOST_MATE, fence)
    assert token.exists()


def test_who_is_superseded_takes_no_part_that_the_next_attempts_ranks_have_written(tmp_path: Path, content) -> None:
    directory = tmp_path / "checkpoints" / directory_name(3)
    directory.mkdir(parents=True)
    commit = Commit(
        directory=directory,
        content=content(3, {"w": torch.ones(5)}),
        layout=((), ()),
        world_size=2,
        parent=None,
        abandoned=threading.Event(),
        fence=begin(tmp_path, 1),
    )
    begin(tmp_path, 2)
    part = directory / part_name(1)
    part.write_text(Part(files=()).model_dump_json())
    with pytest.raises(Superseded):
        commit._parts_of_others()
    assert part.exists()


def expire(run_dir: Path, fence: AttemptFence) -> None:
    discard_expired(run_dir / "checkpoints", CheckpointSpec(keep_last=2), known_good={9}, fence=fence)


def save_again(run_dir: Path, fence: AttemptFence) -> None:
    discard_unfinished(run_dir / "checkpoints" / directory_name(12), fence)


CLEARINGS = {
    "what has expired": expire,
    "what an interrupted save left": save_again,
    "all that interrupted saves left": lambda run_dir, fence: sweep(run_dir / "checkpoints", fence),
    "what is damaged": lambda run_dir, fence: fence.quarantine(
        run_dir / "checkpoints" / directory_name(9), run_dir / "quarantine"
    ),
    "what is to be done again": lambda run_dir, fence: abandon_after(run_dir, 3, fence),
}


@pytest.mark.parametrize("what", CLEARINGS)
def test_a_deletion_that_comes_too_late_takes_nothing_away_whoever_looked_before(
    tmp_path: Path, content, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The next attempt begins between the last look and the deletion, and may write under the same names by then."""
    checkpoints = tmp_path / "checkpoints"
    for step in (3, 6, 9, 12):
        save_checkpoint(checkpoints, content(step, {"w": torch.ones(5)}), ALONE)
    (checkpoints / directory_name(12) / MANIFEST_NAME).unlink()
    as_it_was = sorted(checkpoints.rglob("*"))
    fence, real = begin(tmp_path, 1), Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.parent == checkpoints:
            begin(tmp_path, 2)
        return real(path, target)

    with monkeypatch.context() as late:
        late.setattr(Path, "rename", rename)
        with pytest.raises(Superseded, match="attempt 2 has started"):
            CLEARINGS[what](tmp_path, fence)
    assert sorted(checkpoints.rglob("*")) == as_it_was
    assert not any((tmp_path / "quarantine").glob("*")) and not any((tmp_path / "abandoned").glob("*"))

    CLEARINGS[what](tmp_path, begin(tmp_path, 3))
    assert sorted(checkpoints.rglob("*")) != as_it_was
