"""A search that begins with what an earlier one found, of whichever tool, and learns from itself afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.flows.trials.optuna_study import write_study
from headway.flows.trials.summary import TrialRow
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.earlier_trials import MAX_BYTES, EarlierTrials, SearchedData, read_earlier
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.trials_spec import TrialsSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from tests.flows.trials.test_search_page import row, searched

optuna = pytest.importorskip("optuna")

TRAINING = TrainingSpec(recipe=RecipeSpec(model={"width": 16}), max_steps=270)
BASE = Configuration(training=TRAINING, shards=ShardSpec())
SPEC = TrialsSpec.model_validate(
    {
        "vary": {
            "optimizer.kind": ["sgd", "adamw"],
            "optimizer.lr": {"log_uniform": [1e-4, 1.0]},
            "optimizer.nesterov": {"values": [True, False], "when": {"optimizer.kind": "sgd"}},
        },
        "search": "tpe",
        "draws": 4,
        "rounds": 2,
        "warm_start": "earlier",
    }
)
BEST = {"optimizer.kind": "sgd", "optimizer.lr": 0.01, "optimizer.nesterov": False}
ROWS = [
    row(1, BEST, 0.1, 3),
    row(2, {"optimizer.kind": "adamw", "optimizer.lr": 0.02}, 0.3, 3),
    *(
        row(number, {"optimizer.kind": "adamw", "optimizer.lr": 0.1 * number}, 0.4 + number, 1)
        for number in range(3, 9)
    ),
    row(9, {"optimizer.kind": "adamw", "optimizer.lr": 7.0}, 0.05, 3),
    row(10, {"optimizer.kind": "lion", "optimizer.lr": 0.02}, 0.05, 3),
    row(11, {"optimizer.kind": "adamw", "optimizer.lr": 0.5}, 0.9, 1, cause="training", what="it diverged"),
]


@pytest.fixture(params=["earlier.json", "earlier.log", "earlier.db"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A search's `trials.json`, a journal or a database."""
    path = tmp_path / request.param
    rewrite(path, ROWS)
    return path


def rewrite(path: Path, rows: list[TrialRow], **fields: object) -> None:
    found = searched(rows, **fields)
    if path.suffix == ".json":
        path.write_text(json.dumps(found.model_dump(mode="json")))
    else:
        wider = {**SPEC.model_dump(), "vary": {**SPEC.vary, "optimizer.kind": ["sgd", "adamw", "lion"]}}
        wider["vary"]["optimizer.lr"] = {"log_uniform": [1e-4, 10]}
        write_study(found, TrialsSpec.model_validate(wider), path)


def read(path: Path, max_steps: int = TRAINING.max_steps) -> EarlierTrials:
    return read_earlier(path, SPEC.space, max_steps)


def test_those_that_lie_in_the_space_are_taken_the_best_first_and_the_file_stays(file: Path) -> None:
    before = file.read_bytes()
    found = read(file)
    assert str(found) == f"9 of 11 trials of {file.name}"
    assert [each.settings for each in found.outcomes[:2]] == [BEST, ROWS[1].settings]
    assert found.outcomes[0].values[270] == ROWS[0].value
    assert [each.has_failed for each in found.outcomes].count(True) == 1
    assert file.read_bytes() == before and [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("max_steps", [60, 180, 540, 1080])
def test_only_what_came_to_its_end_is_best_and_steps_count_by_their_share_of_a_whole_run(
    file: Path, max_steps: int
) -> None:
    paused = row(3, {"optimizer.kind": "adamw", "optimizer.lr": 0.3}, 0.01, 2)
    ended = row(1, BEST, 0.6, 3)
    rewrite(file, [paused, ended])
    found = read(file, max_steps)
    assert [each.settings for each in found.outcomes] == [BEST, paused.settings]
    third = round(max_steps / 3)
    assert found.outcomes[0].values == {
        round(max_steps / 9): ended.rungs[60],
        third: ended.rungs[180],
        max_steps: ended.value,
    }
    assert found.outcomes[1].values == {round(max_steps / 9): paused.rungs[60], third: paused.rungs[180]}


def test_one_that_paused_at_the_furthest_step_of_a_study_has_not_ended_and_one_without_a_figure_is_left_out(
    tmp_path: Path,
) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 'study'}", direction="minimize")
    lr = optuna.distributions.FloatDistribution(1e-4, 1.0, log=True)
    kind = optuna.distributions.CategoricalDistribution(["sgd", "adamw"])
    for state, value, steps in (
        ("PRUNED", None, {0: 0.3, 9: 0.1}),
        ("COMPLETE", 0.6, {0: 0.8, 9: 0.65}),
        ("PRUNED", None, {}),
    ):
        study.add_trial(
            optuna.trial.create_trial(
                params={"optimizer.kind": "adamw", "optimizer.lr": 0.01},
                distributions={"optimizer.kind": kind, "optimizer.lr": lr},
                state=optuna.trial.TrialState[state],
                value=value,
                intermediate_values=steps,
            )
        )
    found = read(tmp_path / "study", 90)
    assert [dict(each.values) for each in found.outcomes] == [{1: 0.8, 90: 0.6}, {1: 0.3, 89: 0.1}]
    assert str(found) == "2 of 3 trials of study"


DATA = SearchedData(snapshot="a" * 64, unix_s=1785542400.0)


@pytest.mark.parametrize(
    ("pipeline", "snapshot", "words"),
    [
        ("nightly", "a" * 64, "of today's data"),
        ("nightly", "b" * 64, "of other data (2026-08-01)"),
        ("nightly", "", "of data of 2026-08-01"),
        ("other", "b" * 64, "of other data (2026-08-01), by the pipeline nightly"),
    ],
)
def test_data_of_then_are_told_from_those_of_today_also_by_a_study(
    file: Path, pipeline: str, snapshot: str, words: str
) -> None:
    rewrite(file, ROWS, data=DATA)
    assert read(file).on(pipeline, snapshot) == f"9 of 11 trials of {file.name}, {words}"


@pytest.mark.parametrize("data", [None, 7, {"snapshot": 7}, {"snapshot": "a" * 64, "unix_s": 1e300}])
def test_a_file_that_does_not_say_of_what_data_it_is_is_said_to(tmp_path: Path, data: object) -> None:
    path = tmp_path / "earlier"
    path.write_text(json.dumps(searched(ROWS).model_dump(mode="json") | {"data": data, "pipeline": data}))
    assert read(path).on("nightly", "a" * 64) == "9 of 11 trials of earlier, which does not say of what data"


def test_the_first_round_begins_with_the_best_and_later_ones_learn_from_the_search_alone(file: Path) -> None:
    earlier = read(file).outcomes
    first = next_round(SPEC, BASE, 0, [], 270, earlier=earlier)
    assert first[0].settings == BEST and len(first) == 4
    assert [trial.settings for trial in next_round(SPEC, BASE, 0, [], 270, earlier=earlier)] == [
        *(trial.settings for trial in first)
    ]
    drawn = [trial.settings for trial in next_round(SPEC, BASE, 0, [], 270)]
    assert all(trial.settings not in drawn for trial in first)
    records = [PastTrial(trial=trial, values={270: float(trial.number)}) for trial in first]
    assert next_round(SPEC, BASE, 1, records, 270, earlier=earlier) == next_round(SPEC, BASE, 1, records, 270)


def test_of_a_measure_that_rises_the_highest_is_best(tmp_path: Path) -> None:
    path = tmp_path / "earlier"
    path.write_text(json.dumps(searched(ROWS[:2], greater_is_better=True).model_dump(mode="json")))
    assert read(path).outcomes[0].settings == ROWS[1].settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("", "it holds 0 studies, and is to hold one"),
        ("[1, 2]", "neither a search's trials.json"),
        ("{}", "it has no list of trials"),
        ('{"greater_is_better": 1, "trials": 7}', "neither a search's trials.json"),
        ("{\n[[[[", "neither a search's trials.json"),
        ('{"op_code": 99, "worker_id": "x"}\n{"op_code": 0}\n', "neither a search's trials.json"),
        (json.dumps(searched(ROWS[2:]).model_dump(mode="json")), "holds no trial"),
    ],
)
def test_a_file_that_is_no_search_is_refused_with_what_to_name(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "earlier"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read(path)


def test_a_database_of_anything_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE studies (study_id INTEGER)")
        database.commit()
    with pytest.raises(ConfigError, match=r"neither a search's trials\.json nor a study"):
        read(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"neither a search's trials\.json nor a study"):
        read(path)


def test_a_study_that_would_be_computed_without_end_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "endless.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x"
        database.execute(f"CREATE VIEW studies AS {endless} AS study_id, 'a' || x AS study_name FROM c")
        database.commit()
    with pytest.raises(ConfigError, match=r"it has the view studies, which would be computed"):
        read(path)


def test_a_pipe_and_what_is_too_long_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "pipe")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ConfigError, match="longer than"):
        read(tmp_path / "long")
    (tmp_path / "deep").write_bytes(b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(ConfigError, match="neither"):
        read(tmp_path / "deep")


def test_what_learns_from_no_trials_has_no_warm_start() -> None:
    with pytest.raises(ValidationError, match="search random learns from no trials"):
        TrialsSpec.model_validate({"vary": SPEC.vary, "draws": 3, "warm_start": "earlier"})
