"""Retention: the last ones stay, those of round steps, the best, and the last good one always."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.checkpoint import recycled_files
from headway.training.checkpoint.layout import MANIFEST_NAME, committed_steps, directory_name
from headway.training.checkpoint.retention import RetainedCheckpoint, discard_expired, expired, sweep
from headway.training.config.checkpoints import CheckpointSpec
from tests.training.attempts import begin
from tests.training.checkpoint.conftest import save_checkpoint
from tests.training.checkpoint.test_save import ALONE

SCORES = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 3).map(float)
KEPT = st.dictionaries(st.integers(1, 50), st.tuples(st.booleans(), SCORES), max_size=12).map(
    lambda found: [RetainedCheckpoint(step, *rest) for step, rest in found.items()]
)
SPECS = st.builds(
    CheckpointSpec,
    keep_last=st.integers(2, 5),
    keep_every_steps=st.none() | st.integers(1, 20),
    keep_best=st.integers(0, 4),
    best_is=st.sampled_from(["lowest", "highest"]),
)


def left(kept, spec) -> list[int]:
    gone = expired(kept, spec)
    assert list(gone) == sorted(gone)
    return sorted({each.step for each in kept} - set(gone))


@given(KEPT, SPECS)
def test_the_newest_good_one_is_never_deleted_and_while_none_is_known_to_be_good_all_stay(kept, spec):
    good = [each.step for each in kept if each.is_good]
    if good:
        assert max(good) in left(kept, spec)
    else:
        assert left(kept, spec) == sorted(each.step for each in kept)


@given(KEPT, SPECS)
def test_the_newest_those_of_round_steps_and_the_best_stay(kept, spec):
    stay = left(kept, spec)
    steps = sorted(each.step for each in kept)
    assert set(steps[-spec.keep_last :]) <= set(stay)
    assert all(step in stay for step in steps if spec.keep_every_steps and step % spec.keep_every_steps == 0)
    scored = [each for each in kept if each.score is not None and math.isfinite(each.score)]
    best = sorted((each.score for each in scored), reverse=spec.best_is == "highest")[: spec.keep_best]
    assert sum(each.step in stay for each in scored if each.score in best) >= len(best)


@given(KEPT, SPECS)
def test_nothing_else_stays(kept, spec):
    if any(each.is_good for each in kept):
        round_steps = sum(1 for each in kept if spec.keep_every_steps and each.step % spec.keep_every_steps == 0)
        assert len(left(kept, spec)) <= spec.keep_last + round_steps + spec.keep_best + 1


@given(KEPT, SPECS)
def test_the_order_in_which_they_are_found_does_not_matter_and_a_second_look_finds_nothing(kept, spec):
    gone = expired(kept, spec)
    assert expired(kept[::-1], spec) == gone
    assert expired([each for each in kept if each.step not in gone], spec) == ()


def test_of_equally_good_ones_the_newest_is_the_best():
    kept = [RetainedCheckpoint(step, True, 1.0) for step in range(1, 9)]
    assert left(kept, CheckpointSpec(keep_last=2, keep_best=3)) == [6, 7, 8]


def test_what_one_that_stays_names_as_the_best_stays_with_it():
    named = {80: 80, 100: 80, 120: 120, 140: 140, 160: 140}
    kept = [RetainedCheckpoint(step, True, best_step=best) for step, best in named.items()]
    assert left(kept, CheckpointSpec(keep_last=3)) == [120, 140, 160]
    assert left(kept[:4], CheckpointSpec(keep_last=3)) == [80, 100, 120, 140], "a roll-back may lead to 100"


@pytest.mark.parametrize("best_is", ["lowest", "highest"])
def test_a_score_that_is_no_number_takes_nobodys_place(best_is):
    kept = [
        RetainedCheckpoint(step, True, score)
        for step, score in enumerate((math.nan, -math.inf, math.inf, 0.5, None, None), 1)
    ]
    assert left(kept, CheckpointSpec(keep_last=2, keep_best=1, best_is=best_is)) == [4, 5, 6]


def folder(checkpoints, step: int, *, whole: bool = True) -> None:
    (checkpoints / directory_name(step)).mkdir()
    (checkpoints / directory_name(step) / "tensors").write_bytes(b"weights")
    if whole:
        (checkpoints / directory_name(step) / MANIFEST_NAME).write_bytes(b"")


def test_what_expired_leaves_the_disk_and_nothing_else_does(tmp_path):
    for step in (2, 4, 6, 8, 10):
        folder(tmp_path, step)
    folder(tmp_path, 3, whole=False)  # being written: no manifest yet

    discard_expired(tmp_path, CheckpointSpec(keep_last=2), known_good={4})

    assert sorted(path.name for path in tmp_path.iterdir()) == [directory_name(step) for step in (3, 4, 8, 10)]


def test_a_checkpoint_whose_score_cannot_be_read_is_not_among_the_best(tmp_path, content):
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (4, 4.0), (5, 4.0)):
        save_checkpoint(tmp_path, content(step, {}, scalars={"loss": loss}), ALONE)
    (tmp_path / directory_name(3) / MANIFEST_NAME).write_bytes(b"{}")
    spec = CheckpointSpec(keep_last=2, keep_best=1, best_by="loss", best_is="lowest")
    discard_expired(tmp_path, spec, known_good={5})
    assert committed_steps(tmp_path) == [2, 4, 5]


def test_its_files_may_be_written_over_only_once_the_disk_too_knows_no_manifest_of_theirs(tmp_path, monkeypatch, disk):
    checkpoints, real, kept = tmp_path / "checkpoints", recycled_files.keep, []
    checkpoints.mkdir()
    for step in (2, 4, 6):
        folder(checkpoints, step)

    def keep(checkpoints, expired):
        kept.append((disk.names(expired), disk.names(checkpoints)))
        real(checkpoints, expired)

    monkeypatch.setattr(recycled_files, "keep", keep)
    discard_expired(checkpoints, CheckpointSpec(keep_last=2), known_good={6}, fence=begin(tmp_path, 1))
    assert kept == [({"tensors"}, {directory_name(4), directory_name(6)})]


def test_a_sweep_takes_what_has_no_manifest_and_leaves_what_is_no_checkpoint(tmp_path):
    folder(tmp_path, 2)
    folder(tmp_path, 4, whole=False)
    (tmp_path / "notes").mkdir()

    assert sweep(tmp_path) == [directory_name(4)]

    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", directory_name(2)]
