"""Shards that hold folds out: no row of a fold is in what its model is fitted to, trained on or validated by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headway.data_contracts.store.documents import FittedState, Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError, EncodingRefused
from headway.tasks.folds.cross_validation import FoldTraining, fold_shards
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.rows.fold_scores import fold_of, fold_rule
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.rows.seen_rows import rows_seen
from headway.tasks.rows.source_rows import source_rows
from headway.training.config.fold import Fold
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION, ShardSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards.source_values import values_of_split
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.days import NUM_ROWS, SOURCE, TABLE, Days, columns, shards_spec

pytestmark = pytest.mark.process


def wanted(spec: ShardSpec, folds: int | None = 4) -> FoldTraining:
    return FoldTraining(
        evaluation=EvaluationSpec(folds=folds),
        training=TrainingSpec(),
        launch=LaunchSpec(),
        shards=spec,
        source=SOURCE,
        tracking_uri="",
    )


def rows(days: Days, manifest: Link, split: str) -> list[int]:
    """Numbers of the source's rows, which column `a` holds."""
    shards = days.workspace.load(manifest, ShardManifest)
    context = days.context
    found = source_rows(days.workspace, context.base, SOURCE, shards.snapshot, shards.receipt, context.digests)
    return values_of_split(found, shards, split, ["a"], in_row_order=True)["a"].to_pylist()


def folds(days: Days, spec: ShardSpec, run: RunSpec, number: int = 4) -> list[Link]:
    return fold_shards(days.context, wanted(spec, number), run.manifest)


@pytest.mark.parametrize("validates", [0.0, 0.3])
def test_every_row_is_scored_once_by_a_model_that_was_fitted_to_trained_and_validated_on_none_of_its_fold(
    days: Days, validates: float
) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE, validation_fraction=validates)
    seen: list[int] = []
    for number, manifest in enumerate(folds(days, spec, days.run(spec)), 1):
        held_out, trains = rows(days, manifest, HELDOUT), rows(days, manifest, TRAIN)
        others = rows(days, manifest, VALIDATION) if validates else []
        assert not set(held_out) & {*trains, *others} and len(held_out) + len(trains) + len(others) == NUM_ROWS
        shards = days.workspace.load(manifest, ShardManifest)
        fitted = days.workspace.load(shards.fitted, FittedState)
        # The mean is of these rows alone: had it read one row more, it would be another.
        (mean,) = (each["mean"] for each in fitted.statistics["numeric"] if each["column"] == "a")
        assert mean == pytest.approx(np.mean(trains)) and fitted.statistics["num_rows"] == len(trains)
        assert shards.spec["fold"] == {"number": number, "of": 4}
        seen += held_out
    assert sorted(seen) == list(range(NUM_ROWS))


def test_rows_that_are_added_move_no_row_to_another_fold(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    before = [rows(days, each, HELDOUT) for each in folds(days, spec, days.run(spec))]
    more = range(NUM_ROWS + 25)
    days.write(a=[*more], b=[0.5 * n for n in more], y=["no" if n % 2 else "yes" for n in more])
    after = [rows(days, each, HELDOUT) for each in folds(days, spec, days.run(spec))]
    assert [sorted(n for n in each if n < NUM_ROWS) for each in after] == [sorted(each) for each in before]
    assert sum(map(len, after)) == NUM_ROWS + 25


def test_a_class_with_all_its_rows_in_one_fold_has_the_same_number_in_every_fold(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    run = days.run(spec)
    alone = rows(days, folds(days, spec, run)[0], HELDOUT)
    trains = rows(days, run.manifest, TRAIN)
    rare = next(n for n in alone if n in trains)  # else no model could have the class at all
    days.write(**columns(y=["maybe" if n == rare else "no" if n % 2 else "yes" for n in range(NUM_ROWS)]))
    run = days.run(shards_spec(TABLE, fit=1))
    labels: dict[int, int] = {}
    for manifest in folds(days, shards_spec(TABLE, fit=1), run):
        reader = ShardReader(days.workspace, days.workspace.load(manifest, ShardManifest), HELDOUT)
        numbers = reader.gather(np.arange(reader.num_rows))["label"].reshape(-1).tolist()
        labels |= dict(zip(rows(days, manifest, HELDOUT), numbers, strict=True))
    assert labels == {n: 0 if n == rare else 1 if n % 2 else 2 for n in range(NUM_ROWS)}


def test_where_only_one_fold_has_a_class_the_refusal_names_that_fold_and_the_key(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    run = days.run(spec)
    alone = rows(days, folds(days, spec, run)[2], HELDOUT)
    rare = next(n for n in alone if n in rows(days, run.manifest, TRAIN))
    days.write(**columns(y=["no" if n == rare else "yes" for n in range(NUM_ROWS)]))
    run = days.run(shards_spec(TABLE, fit=1))
    with pytest.raises(EncodingRefused, match="without the rows of fold 3 of 4, column 'y' has 1 class") as refused:
        folds(days, shards_spec(TABLE, fit=1), run)
    assert refused.value.where == "evaluation.folds" and "evaluation.folds" in refused.value.advice


@pytest.mark.parametrize("moved", [True, False])
def test_rows_that_an_earlier_model_learnt_are_known_by_what_they_hold(days: Days, moved: bool) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    before = days.run(spec)
    learnt = rows(days, before.manifest, TRAIN)
    numbers = range(1, NUM_ROWS) if moved else range(NUM_ROWS + 20)
    days.write(a=[*numbers], b=[0.5 * n for n in numbers], y=["no" if n % 2 else "yes" for n in numbers])
    today = days.run(spec)
    manifests = [days.workspace.load(run.manifest, ShardManifest) for run in (before, today)]
    held_out = rows(days, today.manifest, HELDOUT)
    assert today.fitted == before.fitted and bool({*learnt} & {*held_out}) == moved
    assert rows_seen(days.workspace, *manifests).tolist() == [n in learnt for n in held_out]


def test_a_row_that_both_models_learnt_is_no_advantage_to_either(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    run = days.run(spec)
    held_out = rows(days, run.manifest, HELDOUT)[0]
    twin = rows(days, run.manifest, TRAIN)[0]
    same = columns()
    same = {
        name: [values[twin] if n == held_out else value for n, value in enumerate(values)]
        for name, values in same.items()
    }
    days.write(**same)
    shards = days.workspace.load(days.run(spec).manifest, ShardManifest)
    assert not rows_seen(days.workspace, shards, shards).any()


def test_the_shards_of_a_fold_are_found_again_and_tell_which_it_is(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    run = days.run(spec)
    made = folds(days, spec, run)
    assert folds(days, spec, run) == made and len(set(made)) == 4
    assert fold_of(days.workspace, run) is None
    assert fold_of(days.workspace, run.model_copy(update={"manifest": made[2]})) == Fold(number=3, of=4)
    assert fold_shards(days.context, wanted(spec, None), run.manifest) == []


def test_rows_that_ranked_trials_are_not_to_evaluate_by_folds(days: Days) -> None:
    days.write(**columns())
    spec = shards_spec(TABLE)
    run = days.run(spec)
    remember_ranking(days.context, 0.5, spec, {})
    with pytest.raises(ConfigError, match="rows of this pipeline have ranked trials"):
        folds(days, spec, run)


def test_of_many_rows_folds_are_refused_before_any_is_made(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.tasks.folds.cross_validation.MAX_ROWS", NUM_ROWS - 1)
    days.write(**columns())
    spec = shards_spec(TABLE)
    with pytest.raises(ConfigError, match="40 rows are too many for folds"):
        folds(days, spec, days.run(spec))


@pytest.mark.parametrize(
    "other",
    [{"split_salt": "anew"}, {"split_by": "key", "split_key": "a"}],
    ids=lambda fields: next(iter(fields)),
)
def test_folds_of_another_rule_are_others(other: dict[str, Any]) -> None:
    types = {"a": "int64"}
    one, two = shards_spec(TABLE), shards_spec(TABLE, **other)
    assert fold_rule(one, 5, types) != fold_rule(two, 5, types)
    assert fold_rule(one, 5, types) != fold_rule(one, 4, types)
    assert fold_rule(one, 5, types) == fold_rule(shards_spec(TABLE, heldout_fraction=0.1), 5, types)
    key = {"split_by": "key", "split_key": "a"}
    by_key = shards_spec(TABLE, **key)
    assert fold_rule(by_key, 5, types) != fold_rule(by_key, 5, {"a": "string"}), "other types, other hashes"
