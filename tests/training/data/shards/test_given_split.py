"""A split that is given, by a column's values or by files: kept to the letter, and refused where it says nothing."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import DataError
from headway.tasks.rows.pipeline_split import pipeline_split
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION, ShardSpec
from headway.training.data.shards.row_blocks import blocks_of, listed_without_rows
from headway.training.data.shards.splits import NO_ROWS, SourceRows, plan_groups, within_fraction

PARTS = ["train", "valid", "test", "train", None]


def source(values: list[Any], path: str = "a.csv", kind: pa.DataType | None = None) -> SourceRows:
    def read() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"part": pa.array(values, kind), "row": list(range(len(values)))})

    return SourceRows(path, "0" * 64, 0, len(values), NO_ROWS, read)


def by_column(**split: Any) -> ShardSpec:
    return ShardSpec.model_validate({"split": {"column": "part", **split}})


def rows_of(spec: ShardSpec, *sources: SourceRows) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in spec.splits}
    for task in plan_groups(sources, spec):
        for member in task.members:
            for split, block in blocks_of(member, task, spec):
                found[split] += block.batch.column("row").to_pylist()
    return found


def test_a_columns_values_say_the_split() -> None:
    spec = by_column(train=["train"], heldout=["valid", "test"])
    assert spec.split_by == "given"
    assert rows_of(spec, source(PARTS[:4])) == {TRAIN: [0, 3], HELDOUT: [1, 2]}


def test_what_no_split_lists_trains_if_only_what_is_held_out_is_listed() -> None:
    assert rows_of(by_column(heldout=["test"]), source(PARTS)) == {TRAIN: [0, 1, 3, 4], HELDOUT: [2]}


@pytest.mark.parametrize(
    ("values", "message"), [(PARTS[:4], "'valid' in 1 row"), ([*PARTS[:1], None], "null in 1 row")]
)
def test_a_value_that_no_split_lists_is_refused_or_left_out_as_asked(values: list[Any], message: str) -> None:
    listed = {"train": ["train"], "heldout": ["test"]}
    with pytest.raises(DataError, match=rf"a\.csv: column 'part' is {message}, which no split lists.*leave_out"):
        rows_of(by_column(**listed), source(values))
    assert rows_of(by_column(**listed, others="leave_out"), source(PARTS)) == {TRAIN: [0, 3], HELDOUT: [2]}


@pytest.mark.parametrize(
    ("values", "kind", "train", "heldout"),
    [
        ([2024, 2025, 2026], pa.int16(), [2024, 2025], [2026]),
        ([True, False], None, [False], [True]),
        ([datetime.date(2026, 1, 1), datetime.date(2026, 2, 1)], None, ["2026-01-01"], ["2026-02-01"]),
    ],
)
def test_whole_numbers_truths_and_days_are_values_too(
    values: list[Any], kind: pa.DataType, train: list[Any], heldout: list[Any]
) -> None:
    found = rows_of(by_column(train=train, heldout=heldout), source(values, kind=kind))
    assert len(found[TRAIN]) == len(train) and len(found[HELDOUT]) == len(heldout)


def test_a_number_is_no_text_and_no_truth() -> None:
    with pytest.raises(DataError, match="'1' in 1 row"):
        rows_of(by_column(train=[1], heldout=[2]), source(["1"]))
    with pytest.raises(DataError, match="column 'part' is double"):
        rows_of(by_column(train=[1], heldout=[2]), source([1.0]))


@pytest.mark.parametrize(
    ("listed", "values", "message"),
    [
        ({"heldout": ["valid", "tset"]}, PARTS, r"no row has 'tset' in column 'part'.*'test' \(1 row\)"),
        ({"train": ["train"], "heldout": ["test", "Valid"], "others": "leave_out"}, PARTS, "'Valid'.*'valid'"),
        ({"heldout": ["2024", "2025"]}, ["2025", "2024-", "a"], "'2024'.*'2024-'"),
        ({"heldout": ["x"]}, PARTS, r"shards\.split\.heldout lists: 'x'.*The data have 'train'"),
        ({"train": ["y"], "heldout": ["test"], "others": "leave_out"}, PARTS, r"shards\.split\.train lists: 'y'"),
    ],
)
def test_a_value_that_no_row_has_is_refused_where_it_looks_misspelt_or_leaves_a_split_empty(
    listed: dict[str, Any], values: list[Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        listed_without_rows([source(values[:2]), source(values[2:])], by_column(**listed))


@pytest.mark.parametrize(
    ("listed", "values"),
    [
        ({"heldout": ["user-1001", "user-1002"]}, ["user-1001", "user-1003"]),
        ({"train": ["train", "tran"], "heldout": ["test", "valid"]}, PARTS[:4]),
    ],
)
def test_a_value_that_has_no_rows_today_is_told_and_refuses_nothing(listed: dict[str, Any], values: list[Any]) -> None:
    assert listed_without_rows([source(values)], by_column(**listed)) in (("user-1002",), ("tran",))


def test_the_source_is_read_no_further_than_to_the_last_listed_value() -> None:
    def unread() -> Iterator[pa.RecordBatch]:
        raise AssertionError("all listed values were found before")
        yield

    late = SourceRows("b.csv", "0" * 64, 0, 1, NO_ROWS, unread)
    assert listed_without_rows([source(PARTS), late], by_column(heldout=["test", "valid"])) == ()


def test_files_are_told_by_globs_as_a_sources_are() -> None:
    spec = ShardSpec.model_validate({"split": {"train": ["2024/**", "2025/*.csv"], "heldout": ["2026/**"]}})
    files = [source([None], path) for path in ("2024/a/b.csv", "2025/c.csv", "2026/d.csv")]
    held = {member.path for task in plan_groups(files, spec) if task.splits == (HELDOUT,) for member in task.members}
    assert held == {"2026/d.csv"}
    with pytest.raises(DataError, match=r"2027/e\.csv: no split lists the file"):
        plan_groups([*files, source([None], "2027/e.csv")], spec)
    left = ShardSpec.model_validate({"split": {**spec.split.model_dump(), "others": "leave_out"}})
    paths = {m.path for task in plan_groups([*files, source([None], "2027/e.csv")], left) for m in task.members}
    assert paths == {"2024/a/b.csv", "2025/c.csv", "2026/d.csv"}
    with pytest.raises(DataError, match=r"2026/\*\*' matches no file"):
        plan_groups(files[:2], spec)
    both = ShardSpec.model_validate({"split": {"train": ["**/*.csv"], "heldout": ["2026/**"]}})
    with pytest.raises(DataError, match=r"2026/d\.csv: train and heldout list the file"):
        plan_groups(files, both)


def test_a_third_list_names_what_validates_by_values_and_by_globs() -> None:
    listed = by_column(train=["train"], validation=["valid"], heldout=["test"])
    assert listed.splits == (TRAIN, HELDOUT, VALIDATION)
    assert rows_of(listed, source(PARTS[:4])) == {TRAIN: [0, 3], VALIDATION: [1], HELDOUT: [2]}
    globs = ShardSpec.model_validate({"split": {"validation": ["2025/**"], "heldout": ["2026/**"]}})
    files = [source([None], path) for path in ("2024/a.csv", "2025/b.csv", "2026/c.csv")]
    found = {task.splits: [member.path for member in task.members] for task in plan_groups(files, globs)}
    assert found == {(TRAIN,): ["2024/a.csv"], (VALIDATION,): ["2025/b.csv"], (HELDOUT,): ["2026/c.csv"]}
    assert listed.splitting != by_column(train=["train"], heldout=["test"]).splitting
    assert "validation" not in by_column(heldout=["test"]).splitting["split"], "as before there was such a list"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"split": {"column": "part", "validation": ["b"], "heldout": ["b"]}}, "both splits list 'b'"),
        ({"split": {"column": "part", "heldout": ["b"]}, "validation_fraction": 0.1}, "split.validation"),
        ({"heldout_fraction": 0.5, "validation_fraction": 0.5}, "leave nothing to train on"),
        ({"validation_fraction": 0.6}, "validation_fraction"),
        ({"split": {"column": "part", "train": ["a"], "heldout": []}}, "heldout"),
        ({"split": {"column": "part", "train": ["a", "b"], "heldout": ["b"]}}, "both splits list 'b'"),
        ({"split": {"heldout": [3]}}, "globs are texts"),
        ({"split": {"column": "part", "heldout": ["a"]}, "split_by": "row"}, "goes with `split_by: given`"),
        ({"split_by": "given"}, "goes with `split_by: given`"),
        ({"split": {"column": "part", "heldout": ["a"]}, "split_key": "part"}, "split_key"),
    ],
)
def test_a_split_that_says_nothing_or_two_things_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ShardSpec.model_validate(fields)


def test_it_is_part_of_every_key_and_where_there_is_none_nothing_has_changed() -> None:
    one, two = by_column(heldout=["test"]), by_column(heldout=["valid"])
    for name in ("identity", "group_identity", "splitting"):
        assert getattr(one, name) != getattr(two, name)
        assert "split" not in getattr(ShardSpec(), name), "manifests without one keep their digests"
    assert ShardSpec.model_validate(one.identity) == one


def test_the_contracts_leakage_rules_see_the_same_split() -> None:
    spec = by_column(train=["train"], heldout=["test"], others="leave_out")
    split = pipeline_split(spec, {"part": "string"})
    assert split.key == "part" and split.of_rows is not None
    names = split.of_rows(pa.array(["a"] * 5), pa.array(range(5)), pa.array(PARTS))
    assert names.to_pylist() == ["train", None, "heldout", "train", None]
    for text in ("--5", "9" * 5000, "\u00b2", "-"):
        assert split.of_text(text) is None, "a value like a number, and none"
    files = ShardSpec.model_validate({"split": {"heldout": ["2026/**"]}})
    split = pipeline_split(files, {})
    assert (split.of_text("2026/a"), split.of_text("2025/a"), split.of_rows) == ("heldout", "train", None)


@pytest.mark.parametrize("split", [{"column": "part", "heldout": ["test"]}, {"heldout": ["**"]}])
def test_a_share_of_what_is_held_out_can_rank_and_a_larger_one_has_it_all(split: dict[str, Any]) -> None:
    spec = ShardSpec.model_validate({"split": split})
    assert spec.whole_fraction == 1.0
    numbers = np.arange(1000)
    members = [source([None], f"{number}.csv") for number in range(200)] if "column" not in split else [source([None])]
    less, more = (
        np.concatenate([within_fraction(each, None, numbers, spec, fraction) for each in members])
        for fraction in (0.2, 0.5)
    )
    assert not (less & ~more).any()
    assert less.mean() == pytest.approx(0.2, abs=0.08) and more.mean() == pytest.approx(0.5, abs=0.12)
