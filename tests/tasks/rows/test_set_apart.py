"""No example that ranks trials or stops a run judges a model, ever: whatever shares, keys or salts say later."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.tasks.core.context import RunContext
from headway.tasks.rows.heldout_parts import apart_from
from headway.tasks.rows.ranking_split import RankingSplit, ref_of, remember_ranking
from headway.tasks.rows.set_apart import RowsApart, any_of, require_deciding_columns, rows_apart
from headway.tasks.rows.validation_split import ValidationSplit, require_apart
from headway.training.config.shards import HELDOUT, VALIDATION, ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.shards.splits import NO_ROWS, SourceRows, rows_by_split, split_of, within_fraction
from tests.tasks.days import TABLE

Row = tuple[str, int]
RULES: list[dict[str, Any]] = [
    {"split_by": "row"},
    {"split_by": "row", "split_salt": "anew"},
    {"split_by": "file"},
    {"split_by": "key", "split_key": "user"},
    {"split_by": "key", "split_key": "account"},
    {"split": {"column": "part"}},
    {"split": {"column": "part_number"}},
    {"split": {}},
]
PARTS = "abcd"
COLUMNS = {"user": "int64", "account": "string", "part": "string", "part_number": "int64"}
SHARES = st.sampled_from([0.1, 0.4, 0.7])
LISTS = st.permutations(range(4)).flatmap(
    lambda parts: st.integers(1, 2).map(lambda n: {"heldout": parts[:n], "validation": parts[n:3], "train": parts[3:]})
)
DAYS = st.lists(
    st.fixed_dictionaries(
        {
            # The first rule comes up most, so that one rule meets changed shares and more data.
            "rule": st.one_of(st.just(0), st.integers(0, len(RULES) - 1)),
            "heldout": SHARES,
            "ranks": st.one_of(st.none(), SHARES),
            "validates": st.sampled_from([0.0, 0.4]),
            "lists": LISTS,
            "new_rows": st.integers(0, 20),
        }
    ),
    min_size=2,
    max_size=5,
)
NUMBERS = itertools.count()


def day(rule: int, *, heldout: Any = 0.3, validates: float = 0.0, ranks: float | None = None, **lists: Any) -> Any:
    listed = {"heldout": heldout if isinstance(heldout, list) else [0, 1], "validation": [2], "train": [3], **lists}
    return {"rule": rule, "heldout": heldout, "validates": validates, "ranks": ranks, "lists": listed, "new_rows": 9}


def spec_of(asked: dict[str, Any]) -> ShardSpec:
    rule = RULES[asked["rule"]]
    if "split" in rule:
        texts = {"part": lambda number: PARTS[number], "part_number": int}.get(
            rule["split"].get("column"), lambda number: f"{number}*"
        )
        lists = {name: [texts(number) for number in numbers] for name, numbers in asked["lists"].items()}
        split = {**rule["split"], **lists, "others": "leave_out"}
        return ShardSpec.model_validate({"encoder": TABLE, "split": split})
    validates = min(asked["validates"], 0.9 - asked["heldout"])
    shares = {"heldout_fraction": asked["heldout"], "validation_fraction": validates}
    return ShardSpec.model_validate({"encoder": TABLE, **shares, **rule})


def block_of(path: str, num_rows: int, **columns: Any) -> tuple[SourceRows, SourceBlock]:
    numbers = np.arange(num_rows)
    batch = pa.record_batch(
        {
            "user": pa.array(numbers % 7),
            "account": pa.array([f"account {number % 5}" for number in numbers]),
            "part": pa.array([PARTS[number % 4] for number in numbers]),
            "part_number": pa.array(numbers // 2 % 4),
            **columns,
        }
    )
    source = SourceRows(path, "", 0, num_rows, NO_ROWS, lambda: iter([batch]))
    return source, SourceBlock(path, numbers, numbers.astype(np.uint64), batch)


def rows_of(path: str, mask: np.ndarray[Any, Any]) -> set[Row]:
    return {(path, int(number)) for number in np.flatnonzero(mask)}


def sides(files: dict[str, int], spec: ShardSpec, ranks: float) -> tuple[set[Row], set[Row], set[Row]]:
    """What is held out, what of it ranks, and what validates: by the splits that shards go by."""
    heldout, ranking, validation = set[Row](), set[Row](), set[Row]()
    for path, num_rows in files.items():
        source, block = block_of(path, num_rows)
        if spec.split_by == "file" or (spec.split is not None and spec.split.column is None):
            masks = {each: np.full(num_rows, each == split_of(path, spec)) for each in (HELDOUT, VALIDATION)}
        else:
            masks = dict(rows_by_split(source, block.batch, block.row_numbers, spec))
        below = within_fraction(source, block.batch, block.row_numbers, spec, spec.whole_fraction * ranks)
        heldout |= rows_of(path, masks[HELDOUT])
        ranking |= rows_of(path, masks[HELDOUT] & below)
        validation |= rows_of(path, masks.get(VALIDATION, np.zeros(num_rows, bool)))
    return heldout, ranking, validation


def rows_in(apart: tuple[RowsApart, ...], files: dict[str, int]) -> set[Row]:
    return set[Row]().union(*(rows_of(path, any_of(apart, *block_of(path, number))) for path, number in files.items()))


@pytest.mark.process  # a folder that many entries are written to and synced
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAYS)
@example([day(0, validates=0.4), day(0, heldout=0.7)])
@example([day(0, ranks=0.7), day(0, ranks=0.1), day(0, heldout=0.1), day(1)])
@example([day(5, heldout=[0], validation=[1]), day(5, heldout=[0, 1], validation=[2]), day(6, heldout=[1])])
@example([day(0, validates=0.4), day(1), day(3), day(2, ranks=0.7, heldout=0.7), day(7), day(0)])
def test_what_ranked_or_validated_judges_never_whatever_the_split_is_later(
    context: RunContext, days: list[dict[str, Any]]
) -> None:
    pipeline = replace(context, pipeline=f"tiny-{next(NUMBERS)}")
    chose = set[Row]()
    files: dict[str, int] = {}
    for number, asked in enumerate(days):
        files[f"{number}.csv"] = 12
        files["0.csv"] += asked["new_rows"]
        spec = spec_of(asked)
        try:
            require_apart(pipeline, spec, files)
        except ConfigError:
            continue  # no shards, and nothing judges
        if asked["ranks"] is not None:
            remember_ranking(pipeline, asked["ranks"], spec, COLUMNS)
        manifest = ShardManifest.model_construct(spec=spec.identity)
        heldout, ranks, validates = sides(files, spec, asked["ranks"] or 0)
        chose |= ranks | validates

        apart = rows_in(apart_from(pipeline, asked["ranks"] or 0, manifest), files)
        assert ranks <= apart
        assert not (heldout - apart) & chose, "what judges chose nothing"


def test_nothing_is_set_apart_that_chose_nothing(context: RunContext) -> None:
    rows = {"0.csv": 400}
    asked = [day(0, ranks=0.5), day(5, ranks=0.5), day(3, validates=0.4), day(6, heldout=[0], validation=[1, 2])]
    chose = set[Row]()
    for each in asked:
        spec = spec_of(each)
        require_apart(context, spec, rows)
        if each["ranks"]:
            remember_ranking(context, each["ranks"], spec, COLUMNS)
        _, ranks, validates = sides(rows, spec, each["ranks"] or 0)
        assert ranks or validates
        chose |= ranks | validates
    other = spec_of(day(1))
    assert rows_in(rows_apart(context.workspace, context.pipeline, other, 0.0), rows) == chose


def test_of_a_given_split_before_lists_were_recorded_all_rows_of_the_same_hashes_are_set_apart(
    context: RunContext,
) -> None:
    spec = spec_of(day(5, ranks=0.5))
    remember_ranking(context, 0.5, spec, COLUMNS)
    (told,) = rows_apart(context.workspace, context.pipeline, spec, 0.0)
    recorded = RankingSplit(pipeline=context.pipeline, splitting=told.splitting, fraction=told.fraction)
    assert b"listed" not in recorded.to_bytes(), "documents of before keep their digests"
    before = told.model_copy(update={"listed": ()})
    rows = {"0.csv": 100}
    assert rows_in((told,), rows) < rows_in((before,), rows)
    assert {row % 4 for _, row in rows_in((told,), rows)} == {0, 1}
    assert {row % 4 for _, row in rows_in((before,), rows)} == {0, 1, 2, 3}


def test_a_row_whose_key_is_null_today_is_none_of_those_that_ranked(context: RunContext) -> None:
    remember_ranking(context, 1.0, spec_of(day(3, heldout=0.7)), COLUMNS)
    (told,) = rows_apart(context.workspace, context.pipeline, spec_of(day(1)), 0.0)
    users = pa.array([None if number % 2 else number for number in range(40)], pa.int64())
    whole = any_of((told,), *block_of("0.csv", 40, user=pa.array(range(40), pa.int64())))
    assert whole[1::2].any() and whole[::2].any()
    some = any_of((told,), *block_of("0.csv", 40, user=users))
    assert some[::2].tolist() == whole[::2].tolist() and not some[1::2].any()
    assert not any_of((told,), *block_of("0.csv", 40, user=pa.nulls(40, pa.int64()))).any()


@pytest.mark.parametrize("before", [RULES[3], RULES[5]])
def test_a_split_is_refused_while_the_column_is_gone_that_tells_what_chose(context: RunContext, before: Any) -> None:
    remember_ranking(context, 0.5, spec_of(day(RULES.index(before))), COLUMNS)
    column = before.get("split_key") or before["split"]["column"]
    require_deciding_columns(context.workspace, context.pipeline, spec_of(day(1)), {"a": "double", column: "int8"})
    with pytest.raises(ConfigError, match=f"ranked trials .* was '{column}' cannot be told any more") as refused:
        require_deciding_columns(context.workspace, context.pipeline, spec_of(day(1)), {"a": "double"})
    assert "Keep the column" in refused.value.advice
    own = spec_of(day(RULES.index(before)))
    require_deciding_columns(context.workspace, context.pipeline, own, {"a": "double"})  # sharding refuses it itself


def test_a_key_whose_values_have_other_hashes_now_is_refused_under_every_split(context: RunContext) -> None:
    by_user, by_row = spec_of(day(3, validates=0.4)), spec_of(day(1))
    users = pa.array(range(40))
    below = [
        within_fraction(
            *block_of("0.csv", 40, user=each)[:1], pa.record_batch({"user": each}), np.arange(40), by_user, 0.5
        )
        for each in (users, users.cast(pa.int8()), users.cast(pa.string()))
    ]
    assert np.array_equal(below[0], below[1]) and not np.array_equal(below[0], below[2])

    def require(spec: ShardSpec, kind: str) -> None:
        require_deciding_columns(context.workspace, context.pipeline, spec, {"user": kind})

    require_apart(context, by_user, ())  # by an earlier version, which did not say
    require(by_user, "string")
    require_apart(context, by_user, (), COLUMNS)
    remember_ranking(context, 0.5, by_user, COLUMNS)
    for spec in (by_user, by_row):
        require(spec, "int8")
        with pytest.raises(ConfigError, match=r"'user' \(of whole numbers\) cannot be told any more.*is of string now"):
            require(spec, "string")
    when = spec_of(day(3)).model_copy(update={"split_key": "at"})
    remember_ranking(context, 0.5, when, {"at": "timestamp[ns]"})
    for kind, is_same in (("timestamp[ns, tz=UTC]", True), ("timestamp[us]", False)):
        with (
            contextlib.nullcontext()
            if is_same
            else pytest.raises(ConfigError, match=r"timestamp in ns.*timestamp in us")
        ):
            columns = {"user": "int64", "at": kind}
            require_deciding_columns(context.workspace, context.pipeline, by_row, columns)


@pytest.mark.parametrize("column", ["user", "part"])
def test_a_column_that_became_another_type_is_refused_by_name(context: RunContext, column: str) -> None:
    remember_ranking(context, 0.5, spec_of(day(3 if column == "user" else 5)), COLUMNS)
    apart = rows_apart(context.workspace, context.pipeline, spec_of(day(1)), 0.0)
    with pytest.raises(DataError, match=f"which rows ranked trials .* was '{column}' cannot be told: .*double"):
        any_of(apart, *block_of("0.csv", 8, **{column: pa.array(np.arange(8.0))}))


@pytest.mark.parametrize("before", [True, "true", "TRUE"])
def test_truths_that_became_texts_and_texts_that_became_truths_are_told(context: RunContext, before: Any) -> None:
    split = {"column": "part", "validation": [before], "others": "leave_out", "train": ["none"]}
    chose = ShardSpec.model_validate({"encoder": TABLE, "split": {**split, "heldout": ["other"]}})
    require_apart(context, chose, ())
    (told,) = rows_apart(context.workspace, context.pipeline, spec_of(day(1)), 0.0)
    for truth in (True, "True", "true"):
        other = "false" if isinstance(truth, str) else False
        found = any_of((told,), *block_of("0.csv", 4, part=pa.array([truth, other] * 2)))
        assert found.tolist() == [True, False] * 2
        holds_out = {**split, "validation": [], "heldout": [truth]}
        with pytest.raises(ConfigError, match="validated runs of this pipeline, and would evaluate"):
            require_apart(context, ShardSpec.model_validate({"encoder": TABLE, "split": holds_out}), ())


def test_a_file_whose_name_is_a_number_is_named_by_a_glob_as_any_other(context: RunContext) -> None:
    split = {"train": ["*.csv"], "heldout": ["7"], "validation": ["true"]}
    spec = ShardSpec.model_validate({"encoder": TABLE, "split": split})
    require_apart(context, spec, ())
    remember_ranking(context, 0.999999, spec, COLUMNS)
    apart = rows_apart(context.workspace, context.pipeline, spec_of(day(1)), 0.0)
    assert rows_in(apart, {"7": 2, "true": 2, "0.csv": 2}) == {("7", 0), ("7", 1), ("true", 0), ("true", 1)}


def test_the_same_ranking_is_written_down_once(context: RunContext) -> None:
    def entries() -> int:
        return len(list(refs.history(context.workspace, ref_of(context.pipeline))))

    given_split = spec_of(day(5))
    remember_ranking(context, 0.5, given_split, COLUMNS)
    first = entries()
    remember_ranking(context, 0.5, given_split, COLUMNS)
    remember_ranking(context, 0.2, given_split, COLUMNS)
    assert entries() == first > 0
    remember_ranking(context, 0.2, spec_of(day(5, heldout=[1])), COLUMNS)
    assert entries() > first, "of other values other rows rank"


@pytest.mark.parametrize("splitting", [{"split_by": "moon"}, {}, ["row"]])
@pytest.mark.parametrize("kind", [RankingSplit, ValidationSplit])
def test_a_rule_of_a_newer_version_is_no_traceback(
    context: RunContext, kind: type[RankingSplit | ValidationSplit], splitting: Any
) -> None:
    of_newer = replace(context, pipeline=f"tiny-{next(NUMBERS)}")
    document = kind(pipeline=of_newer.pipeline, splitting=splitting, fraction=0.1, listed=())
    name = ("ranked/" if kind is RankingSplit else "validated/") + of_newer.pipeline
    refs.move(context.workspace, name, context.workspace.publish_document(document), expected=None, reason="newer")
    spec = ShardSpec.model_validate({"encoder": TABLE})
    for asked in (
        lambda: rows_apart(context.workspace, of_newer.pipeline, spec, 0.0),
        lambda: require_deciding_columns(context.workspace, of_newer.pipeline, spec, COLUMNS),
    ):
        with pytest.raises(IntegrityError, match="by a rule that this Headway does not know"):
            asked()
