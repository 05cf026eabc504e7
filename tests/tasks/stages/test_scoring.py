"""A champion before today's data: read with its own encoder, or said to be beyond comparison."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data_contracts.store.documents import Incomparable, Link, Registration, ShardManifest
from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.candidate import read_candidate
from headway.tasks.stages import scoring
from headway.training.config.shards import HELDOUT, SkewLimits
from headway.training.data.load.shard_reader import ShardReader
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import EvaluationRequest, Scores
from tests.tasks.days import NUM_ROWS, TABLE, Days, columns, shards_spec

pytestmark = pytest.mark.process

CHANGES: dict[str, tuple[dict[str, list[Any]], dict[str, Any], str]] = {
    "a dropped column": (
        {name: values for name, values in columns().items() if name != "b"},
        {"numeric": ["a"]},
        r"cannot read today's data \(a\.csv: has no column 'b', which was fitted as numbers; there are a, y\)",
    ),
    "a column of another type": (
        columns(b=[f"b{n % 3}" for n in range(NUM_ROWS)]),
        {"numeric": ["a"], "categorical": ["b"]},
        r"column 'b' is string and was fitted as numbers",
    ),
    "a new class": (
        columns(y=[("no", "yes", "maybe")[n % 3] for n in range(NUM_ROWS)]),
        {},
        r"column 'y' is null, or a class that the training split has no row of, in row \d+",
    ),
    "another label": (
        columns(z=[n % 3 for n in range(NUM_ROWS)]),
        {"label": "z"},
        "predicts the class in column 'y', this model the class in column 'z'",
    ),
    "another kind of label": (
        columns(y=[*range(NUM_ROWS)]),
        {"label_kind": "number"},
        "predicts the class in column 'y', this model the number in column 'y'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_champion_that_cannot_be_compared_today_is_told_with_the_reason(days: Days, change: str) -> None:
    days.write(**columns())
    champion = days.champion(days.run(shards_spec(TABLE)))
    data, edit, reason = CHANGES[change]
    days.write(**data)
    spec = shards_spec(TABLE | edit, fit=1)
    message = days.bench(spec).score_champion(champion, days.run(spec))
    assert isinstance(message, Incomparable) and message.champion == champion
    assert re.search(reason, message.reason), message.reason
    assert "maybe" not in message.reason and str(days.context.base) not in message.reason


def test_a_file_that_changed_since_its_snapshot_is_no_fault_of_the_champion(days: Days) -> None:
    days.write(**columns())
    champion = days.champion(days.run(shards_spec(TABLE)))
    spec = shards_spec(TABLE | {"numeric": ["a"]})
    days.write(**columns(b=[1.0] * NUM_ROWS))
    today = days.run(spec)
    days.write(**columns(b=[2.0] * NUM_ROWS))
    with pytest.raises(DataError, match=r"a\.csv"):
        days.bench(spec).score_champion(champion, today)


def heldout_numbers(workspace: Workspace, manifest: Link) -> np.ndarray:
    reader = ShardReader(workspace, workspace.load(manifest, ShardManifest), HELDOUT, ["numeric"])
    values: np.ndarray = reader.gather(np.arange(reader.num_rows))["numeric"]
    return values


def test_a_champion_reads_numbers_as_it_was_trained_on_them_though_its_fitted_state_is_todays(days: Days) -> None:
    days.write(**columns())
    plain, shifted = (shards_spec(TABLE | {"standardise": each}) for each in (False, True))
    champion, today = days.run(plain), days.run(shifted)
    assert champion.fitted == today.fitted
    manifest = days.bench(shifted)._encoded_for(champion, today)
    assert manifest == champion.manifest != today.manifest
    assert heldout_numbers(days.workspace, manifest).max() > 10 > heldout_numbers(days.workspace, today.manifest).max()


def test_its_shards_are_those_it_was_trained_on_while_the_data_stay_whatever_is_fitted_and_asked_since(
    days: Days,
) -> None:
    days.write(**columns())
    champion = days.run(shards_spec(TABLE))
    spec = shards_spec(TABLE | {"numeric": ["a"]}, fit=1, skew={"max_rows_ratio": 1.0})
    assert spec.skew != SkewLimits()
    today = days.run(spec)
    assert today.fitted != champion.fitted
    assert days.bench(spec)._encoded_for(champion, today) == champion.manifest
    assert days.bench(spec)._encoded_for(today, today) == today.manifest


def test_simple_models_are_fitted_once_for_all_models_on_the_same_shards_and_code(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    fitted = {"class prior": {"nats": np.array([0.1, 1 / 3]), "correct": np.array([1.0, 0.0])}}

    def ranks(context: Any, launch: Any, run: Any, request: EvaluationRequest, *_: Any) -> Scores:
        asked.append(request.baselines)
        sums = {"nats": np.array([0.5, 0.25])}
        return Scores(examples=("0", "1"), slices=("", ""), sums=sums, baselines=fitted if request.baselines else {})

    monkeypatch.setattr(scoring, "run_evaluation", ranks)
    monkeypatch.setattr(scoring, "require_files", lambda *_: None)
    monkeypatch.setattr(scoring, "checkpoint_here", lambda *_: "checkpoint")
    days.write(**columns())
    spec = shards_spec(TABLE)
    run, bench = days.run(spec), days.bench(spec)
    first = read_candidate(days.workspace, days.workspace.load(days.champion(run), Registration).checkpoint)
    again = replace(first, run=run.model_copy(update={"config": run.config | {"seed": 7}}))
    edited = replace(first, run=run.model_copy(update={"code": run.code.model_copy(update={"sha256": "0" * 64})}))
    scores = [bench.score(each) for each in (first, again, edited)]
    assert asked == [True, False, True], "other code may fit others"
    for each in scores:
        assert {name: values.tolist() for name, values in each.baselines["class prior"].items()} == {
            "nats": [0.1, 1 / 3],
            "correct": [1.0, 0.0],
        }, "to the bit"


def test_what_ranks_are_asked_is_written_into_no_file_that_a_link_leads_to(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "run_stepless", lambda *_, **__: None)
    monkeypatch.setattr(scoring, "merge", lambda *_: None)
    victim, folder = tmp_path / "victim", tmp_path / "evaluation"
    victim.write_text("mine")
    folder.mkdir()
    (folder / "request.json").symlink_to(victim)
    days.write(**columns())
    run = days.run(shards_spec(TABLE))
    request = EvaluationRequest.model_construct()
    with pytest.raises(IntegrityError, match="a link leads out of the workspace"):
        scoring.run_evaluation(None, LaunchSpec(), run, request, folder)  # type: ignore[arg-type]
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("since", ["other keys", "gone"])
def test_keys_of_held_out_rows_are_those_that_were_sharded_whatever_the_source_holds_since(
    days: Days, since: str
) -> None:
    who = [f"patient {n // 3}" for n in range(NUM_ROWS)]
    days.write(**columns(who=who))
    spec = shards_spec(TABLE | {"standardise": False}, split_by="key", split_key="who")
    run = days.run(spec)
    manifest = days.workspace.load(run.manifest, ShardManifest)
    reader = ShardReader(days.workspace, manifest, HELDOUT)
    numbers = np.round(reader.gather(np.arange(reader.num_rows))["numeric"][:, 0]).astype(int)
    examples = tuple(f"row {number:09d}" for number in range(reader.num_rows))
    if since == "gone":
        (days.context.base / "data" / "a.csv").unlink()
    else:
        days.write(**columns(who=[f"patient {n % 2}" for n in range(NUM_ROWS)]))
    keys = days.bench(spec).keys_of(run, examples)
    assert keys is not None
    same, expected = keys[:, None] == keys, numbers[:, None] // 3 == numbers // 3
    assert (same == expected).all() and 1 < len(np.unique(keys)) < len(keys)
