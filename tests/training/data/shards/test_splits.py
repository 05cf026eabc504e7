from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import DataError
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION, ShardSpec
from headway.training.data.shards.splits import NO_ROWS, SourceRows, group_of, plan_groups, split_of

PATHS = [f"folder/file_{number}.py" for number in range(4000)]


def some(paths: list[str]) -> list[SourceRows]:
    return [SourceRows(path, "0" * 64, 0, 1, NO_ROWS, lambda: iter(())) for path in paths]


def test_the_share_of_held_out_files_is_as_asked() -> None:
    spec = ShardSpec(heldout_fraction=0.1)
    assert sum(split_of(path, spec) == HELDOUT for path in PATHS) / len(PATHS) == pytest.approx(0.1, abs=0.02)


@given(st.text(), st.floats(0.001, 0.99), st.floats(0.001, 0.99))
def test_holding_out_more_never_moves_a_held_out_file_into_training(path: str, one: float, two: float) -> None:
    less, more = sorted((one, two))
    if split_of(path, ShardSpec(heldout_fraction=less)) == HELDOUT:
        assert split_of(path, ShardSpec(heldout_fraction=more)) == HELDOUT


def test_the_share_of_files_that_validate_is_as_asked_and_none_is_taken_from_those_held_out() -> None:
    without, with_it = ShardSpec(heldout_fraction=0.1), ShardSpec(heldout_fraction=0.1, validation_fraction=0.2)
    splits = {path: split_of(path, with_it) for path in PATHS}
    assert sum(split == VALIDATION for split in splits.values()) / len(PATHS) == pytest.approx(0.2, abs=0.02)
    assert all(splits[path] == HELDOUT for path in PATHS if split_of(path, without) == HELDOUT)


SHARES = st.tuples(st.floats(0.001, 0.99), st.floats(0.001, 0.5)).filter(lambda shares: sum(shares) < 1)


@given(st.text(), SHARES, SHARES)
def test_what_validates_evaluates_under_no_other_shares_that_leave_room_for_both(path, one, two) -> None:
    (heldout, _), (_, validates) = one, two
    if heldout + validates <= 1 and split_of(path, _shares(*two)) == VALIDATION:
        assert split_of(path, _shares(*one)) != HELDOUT


def _shares(heldout: float, validates: float) -> ShardSpec:
    return ShardSpec(heldout_fraction=heldout, validation_fraction=validates)


def test_groups_are_used_evenly_and_independently_of_the_split() -> None:
    spec = ShardSpec(num_groups=4, heldout_fraction=0.5)
    for group in range(4):
        members = [path for path in PATHS if group_of(path, spec)[0] == group]
        assert len(members) == pytest.approx(1000, abs=120)
        assert sum(split_of(path, spec) == HELDOUT for path in members) == pytest.approx(500, abs=90)


def test_the_listing_order_of_files_does_not_matter() -> None:
    turned = PATHS.copy()
    random.Random(0).shuffle(turned)
    spec = ShardSpec()
    one, two = plan_groups(some(PATHS), spec), plan_groups(some(turned), spec)
    names = [(task.group, task.splits) for task in one]
    assert names == sorted(names) == [(task.group, task.splits) for task in two]
    assert [[member.path for member in task.members] for task in one] == [
        [member.path for member in task.members] for task in two
    ]


def test_the_salt_alone_changes_who_is_held_out() -> None:
    one, two = ({path for path in PATHS if split_of(path, ShardSpec(split_salt=salt)) == HELDOUT} for salt in "ab")
    assert one != two
    assert one == {path for path in PATHS if split_of(path, ShardSpec(split_salt="a", seed=9)) == HELDOUT}


def test_a_path_listed_twice_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"file_3\.py: the path is listed twice"):
        plan_groups(some([*PATHS, PATHS[3]]), ShardSpec())


@pytest.mark.parametrize("split", [TRAIN, HELDOUT])
def test_a_split_that_stays_empty_is_refused_with_advice(split: str) -> None:
    spec = ShardSpec(heldout_fraction=0.5)
    paths = [path for path in PATHS if split_of(path, spec) != split][:3]
    with pytest.raises(DataError, match=f"none of 3 files falls into split '{split}'.*heldout_fraction"):
        plan_groups(some(paths), spec)


def test_a_model_is_never_left_without_documents_to_judge_it_by() -> None:
    with pytest.raises(ValidationError, match="heldout_fraction"):
        ShardSpec(heldout_fraction=0)
