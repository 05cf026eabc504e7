"""No example that ranks trials or stops a run judges a model: never under one rule, under two not without a word."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.core.context import RunContext
from headway.tasks.rows.earlier_splits import earlier_splits
from headway.tasks.rows.heldout_parts import ranking_fraction, remember_ranking
from headway.tasks.rows.validation_split import require_apart
from headway.training.config.shards import HELDOUT, VALIDATION, ShardSpec
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
    {"split": {"column": "other_part"}},
]
PARTS = "abcd"
SHARES = st.sampled_from([0.1, 0.4, 0.7])
LISTS = st.permutations(PARTS).flatmap(
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
    listed = {"heldout": heldout, "validation": ["c"], "train": ["d"], **lists}
    return {"rule": rule, "heldout": heldout, "validates": validates, "ranks": ranks, "lists": listed, "new_rows": 9}


def spec_of(asked: dict[str, Any]) -> ShardSpec:
    rule = RULES[asked["rule"]]
    if "split" in rule:
        split = {**rule["split"], **asked["lists"], "others": "leave_out"}
        return ShardSpec.model_validate({"encoder": TABLE, "split": split})
    validates = min(asked["validates"], 0.9 - asked["heldout"])
    shares = {"heldout_fraction": asked["heldout"], "validation_fraction": validates}
    return ShardSpec.model_validate({"encoder": TABLE, **shares, **rule})


def rows_in(path: str, num_rows: int, spec: ShardSpec, fraction: float) -> tuple[set[Row], set[Row], set[Row]]:
    """Of a file's rows those that are held out, of these those below a fraction, and those that validate."""
    numbers = np.arange(num_rows)
    batch = pa.record_batch(
        {
            "user": pa.array(numbers % 7),
            "account": pa.array([f"account {number % 5}" for number in numbers]),
            "part": pa.array([PARTS[number % 4] for number in numbers]),
            "other_part": pa.array([PARTS[number // 2 % 4] for number in numbers]),
        }
    )
    source = SourceRows(path, "", 0, num_rows, NO_ROWS, lambda: iter([batch]))
    if spec.split_by == "file":
        split = split_of(path, spec)
        masks = {each: np.full(num_rows, each == split) for each in (HELDOUT, VALIDATION)}
    else:
        masks = dict(rows_by_split(source, batch, numbers, spec))
    below = within_fraction(source, batch, numbers, spec, fraction)
    nothing = np.zeros(num_rows, bool)
    chosen = (masks[HELDOUT], masks[HELDOUT] & below, masks.get(VALIDATION, nothing))
    heldout, first, validation = ({(path, int(number)) for number in numbers[mask]} for mask in chosen)
    return heldout, first, validation


def rows_of(files: dict[str, int], spec: ShardSpec, fraction: float) -> list[set[Row]]:
    by_file = [rows_in(path, num_rows, spec, fraction) for path, num_rows in files.items()]
    return [set[Row]().union(*each) for each in zip(*by_file, strict=True)]


@pytest.mark.process  # a folder that many entries are written to and synced
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DAYS)
@example([day(0, validates=0.4), day(0, heldout=0.7)])
@example([day(5, heldout=["a"], validation=["b"]), day(5, heldout=["a", "b"], validation=["c"])])
@example([day(0, ranks=0.7), day(0, ranks=0.1), day(0, heldout=0.1), day(1)])
def test_what_ranked_or_validated_judges_never_under_one_rule_and_under_another_not_without_a_word(
    context: RunContext, days: list[dict[str, Any]]
) -> None:
    pipeline = replace(context, pipeline=f"tiny-{next(NUMBERS)}")
    chose: defaultdict[int, set[Row]] = defaultdict(set)
    files: dict[str, int] = {}
    for number, asked in enumerate(days):
        files[f"{number}.csv"] = 12
        files["0.csv"] += asked["new_rows"]
        spec = spec_of(asked)
        try:
            require_apart(pipeline, spec, ())
        except ConfigError:
            continue  # no shards, and nothing judges
        if asked["ranks"] is not None:
            remember_ranking(pipeline, asked["ranks"], spec)
        manifest = ShardManifest.model_construct(spec=spec.identity)
        _, ranks, validates = rows_of(files, spec, spec.whole_fraction * (asked["ranks"] or 0))
        chose[asked["rule"]] |= ranks | validates

        heldout, apart, _ = rows_of(files, spec, ranking_fraction(pipeline, asked["ranks"] or 0, manifest))
        judges = heldout - apart
        assert ranks <= apart and not judges & chose[asked["rule"]]
        others = {rule: rows for rule, rows in chose.items() if rule != asked["rule"]}
        warning = earlier_splits(pipeline.workspace, pipeline.pipeline, spec)
        if any(judges & rows for rows in others.values()):
            assert "may judge now" in warning
        if any(others.values()):
            assert warning
        if not others:
            assert not warning


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (RULES[0], RULES[1], "shards.split_salt was 'headway'"),
        (RULES[0], RULES[3], "shards.split_by was 'row'"),
        (RULES[3], RULES[4], "shards.split_key was 'user'"),
        (RULES[3], RULES[0], "shards.split_by was 'key', shards.split_key was 'user'"),
        (RULES[5], RULES[6], "shards.split.column was 'part'"),
        (RULES[5], {"split": {"heldout": ["x"], "train": ["y"]}}, "shards.split.column was 'part'"),
        ({"split": {"heldout": ["x"], "train": ["y"]}}, RULES[5], "shards.split.column was not given"),
    ],
)
def test_it_says_which_setting_was_another_one(context: RunContext, before: Any, now: Any, said: str) -> None:
    lists = {"heldout": ["a"], "train": ["b"]}

    def spec(rule: dict[str, Any], validates: float) -> ShardSpec:
        if "split" in rule:
            split = {**({} if "heldout" in rule["split"] else lists), **rule["split"]}
            return ShardSpec.model_validate({"encoder": TABLE, "split": split})
        return ShardSpec.model_validate({"encoder": TABLE, "validation_fraction": validates, **rule})

    def message() -> str:
        return earlier_splits(context.workspace, context.pipeline, spec(now, 0.0))

    assert message() == ""
    remember_ranking(context, 0.5, spec(before, 0.0))
    assert (
        message() == f"rows that ranked trials while {said}, may judge now, and what they chose looks too good on them"
    )
    assert earlier_splits(context.workspace, context.pipeline, spec(before, 0.0)) == ""
    if "split" not in before:
        require_apart(context, spec(before, 0.2), ())
        assert f"ranked trials while {said}, and rows that validated runs while {said}, may judge" in message()
