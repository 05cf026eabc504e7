"""Each row is in one fold, whatever else there is, and in no model's training that is scored on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import DataError
from headway.training.config.fold import Fold, folds_of
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION, ShardSpec
from headway.training.data.shards.splits import NO_ROWS, SourceRows, plan_groups, rows_by_split, split_of

PATHS = [f"folder/file_{number}.csv" for number in range(2000)]
NUM_FOLDS = st.integers(2, 20)
VALIDATING = st.sampled_from((0.0, 0.2, 0.5))


def source(path: str = "a.csv", num_rows: int = 0) -> SourceRows:
    return SourceRows(path, "0" * 64, 0, num_rows, NO_ROWS, lambda: iter(()))


def masks(spec: ShardSpec, num_rows: int, keys: list[Any] | None = None) -> dict[str, np.ndarray]:
    batch = pa.record_batch({"key": keys if keys is not None else list(range(num_rows))})
    return dict(rows_by_split(source(), batch, np.arange(num_rows), spec))


def spec_of(fold: Fold, **fields: Any) -> ShardSpec:
    return ShardSpec(**{"heldout_fraction": 0.1, "split_by": "row", **fields}).model_copy(update={"fold": fold})


@settings(max_examples=20)
@given(NUM_FOLDS, st.integers(1, 300), VALIDATING, st.sampled_from(("row", "key")))
def test_every_row_is_held_out_by_one_fold_and_in_no_other_part_of_it(num_folds, num_rows, validates, split_by) -> None:
    by = {"split_by": split_by, "split_key": "key" if split_by == "key" else None, "validation_fraction": validates}
    held_out = np.zeros(num_rows, int)
    for fold in folds_of(num_folds):
        found = masks(spec_of(fold, **by), num_rows)
        assert (sum(mask.astype(int) for mask in found.values()) == 1).all(), "each row is in one part"
        held_out += found[HELDOUT]
    assert (held_out == 1).all()


@given(NUM_FOLDS, st.text())
def test_every_file_is_held_out_by_one_fold(num_folds: int, path: str) -> None:
    splits = [split_of(path, ShardSpec().model_copy(update={"fold": fold})) for fold in folds_of(num_folds)]
    assert splits.count(HELDOUT) == 1 and splits.count(TRAIN) == num_folds - 1


@settings(max_examples=20)
@given(NUM_FOLDS, st.integers(1, 100), st.integers(0, 100))
def test_added_rows_move_no_row_to_another_fold(num_folds: int, num_rows: int, num_added: int) -> None:
    for fold in folds_of(num_folds):
        before, after = masks(spec_of(fold), num_rows), masks(spec_of(fold), num_rows + num_added)
        assert (after[HELDOUT][:num_rows] == before[HELDOUT]).all()


def test_rows_of_one_key_are_in_one_fold_wherever_they_lie() -> None:
    keys = [f"customer {number % 50}" for number in range(1000)]
    for fold in folds_of(5):
        mask = masks(spec_of(fold, split_by="key", split_key="key"), 1000, keys)[HELDOUT]
        assert all(len({bool(mask[row]) for row in range(place, 1000, 50)}) == 1 for place in range(50))


def test_folds_are_of_equal_size_and_independent_of_what_is_held_out_and_of_what_validates() -> None:
    shares = {"heldout_fraction": 0.2, "validation_fraction": 0.2}
    usual = masks(ShardSpec(split_by="row", **shares), 20_000)
    for fold in folds_of(5):
        mask = masks(spec_of(fold, **shares), 20_000)[HELDOUT]
        assert mask.mean() == pytest.approx(0.2, abs=0.01)
        for split in (HELDOUT, VALIDATION, TRAIN):
            assert mask[usual[split]].mean() == pytest.approx(0.2, abs=0.02), split


def test_what_validates_beside_a_fold_validates_without_it() -> None:
    usual = masks(ShardSpec(split_by="row", heldout_fraction=0.1, validation_fraction=0.3), 5000)
    for fold in folds_of(4):
        found = masks(spec_of(fold, validation_fraction=0.3), 5000)
        assert not (found[VALIDATION] & ~usual[VALIDATION]).any()


def test_the_shards_of_a_pipeline_without_folds_are_what_they_were() -> None:
    assert "fold" not in ShardSpec().identity and "fold" not in ShardSpec().splitting
    assert spec_of(Fold(number=1, of=5)).identity["fold"] == {"number": 1, "of": 5}
    assert spec_of(Fold(number=1, of=5)).splitting != spec_of(Fold(number=2, of=5)).splitting


def test_a_fold_without_rows_is_refused_by_its_number() -> None:
    spec = ShardSpec().model_copy(update={"fold": Fold(number=3, of=20)})
    others = [path for path in PATHS if split_of(path, spec) != HELDOUT]
    with pytest.raises(DataError, match=r"fold 3 of 20 has no rows") as refused:
        plan_groups([source(path, 1) for path in others[:5]], spec)
    assert "Lower evaluation.folds" in refused.value.advice


def test_there_is_no_fold_beyond_the_last() -> None:
    with pytest.raises(ValidationError, match="there are no more than 5"):
        Fold(number=6, of=5)
