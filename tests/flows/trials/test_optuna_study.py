"""A search that Optuna's own tools open."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.report.summary import RetrainSummary
from headway.flows.trials.optuna_study import write_study, write_study_of
from headway.flows.trials.summary import SearchSoFar, TrialRow, TrialsSummary
from headway.tasks.search.earlier_trials import SearchedData, read_earlier
from headway.tasks.search.trials_spec import TrialsSpec

optuna = pytest.importorskip("optuna")

SPEC = TrialsSpec.model_validate(
    {
        "vary": {
            "optimizer.kind": ["sgd", "adamw"],
            "optimizer.lr": {"log_uniform": [1e-4, 1e-1]},
            "optimizer.momentum": {"values": [0, 0.9, 0.9], "when": {"optimizer.kind": "sgd"}},
        },
        "derive": {"schedule.warmup_steps": "max_steps // 20"},
        "search": "tpe",
        "draws": 3,
        "rounds": 2,
    }
)
BEST = {"optimizer.kind": "sgd", "optimizer.lr": 0.01, "optimizer.momentum": 0.9, "schedule.warmup_steps": 5}
OTHER = {"optimizer.kind": "adamw", "optimizer.lr": 0.02, "schedule.warmup_steps": 5}


def summary() -> TrialsSummary:
    common = {"run": "a" * 16, "steps": 90}
    return TrialsSummary(
        pipeline="tiny",
        metric="accuracy",
        greater_is_better=True,
        num_ranking_examples=9,
        levels=[30, 90],
        trials=[
            TrialRow(trial=2, settings=BEST, value=0.9, low=0.8, high=1.0, rungs={30: 0.5, 90: 0.9}, **common),
            TrialRow(trial=1, settings=OTHER, rungs={30: 0.4}, **common),
            TrialRow(trial=3, settings=OTHER, cause="training", what="it diverged", **common),
        ],
        steps_spent=120,
        steps_saved=60,
        is_decided=True,
        verdict="",
        keep="",
        data=SearchedData(snapshot="a" * 64, unix_s=1785542400.0),
        best=RetrainSummary.model_construct(),
    )


def test_a_search_is_a_study_with_its_settings_rungs_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "study.log"
    for _ in range(2):  # a repeat takes the place of what there was
        write_study(summary(), SPEC, file)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
    study = optuna.load_study(study_name="tiny", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE", "FAIL"]
    assert study.best_trial.params == {"optimizer.kind": "sgd", "optimizer.lr": 0.01, "optimizer.momentum": "0.9"}
    assert study.best_value == 0.9 and study.best_trial.intermediate_values == {30: 0.5, 90: 0.9}
    assert study.best_trial.user_attrs["schedule.warmup_steps"] == "5"
    data = {"snapshot": "a" * 64, "unix_s": 1785542400.0}
    assert study.user_attrs == {"metric": "accuracy", "pipeline": "tiny", "data": data}
    assert study.trials[2].user_attrs["failed"] == "training: it diverged"
    assert [path.name for path in tmp_path.iterdir()] == ["study.log"]


def test_a_branch_is_a_choice_of_a_study_and_is_read_back_from_it_whatever_the_order_of_its_keys(
    tmp_path: Path,
) -> None:
    def space(*ramps: object) -> TrialsSpec:
        vary = {"ema": [None, {"decay": 0.9}, {}], "batch_ramp": list(ramps), "optimizer.groups": [[], frozen]}
        return TrialsSpec.model_validate({"vary": vary})

    groups, frozen = [{"parameters": ["*.bias"], "frozen": True}], [{"frozen": True, "parameters": ["*.bias"]}]
    spec = space(None, {"from_sequences": 4, "at_steps": [10]})
    tried = {
        "ema": {"decay": 0.9},
        "batch_ramp": {"at_steps": [10], "from_sequences": 4},
        "optimizer.groups": tuple(groups),
    }
    best = summary().trials[0].model_copy(update={"settings": tried})
    none = best.model_copy(update={"trial": 4, "settings": {"ema": None, "batch_ramp": None, "optimizer.groups": ()}})
    search = summary().model_copy(update={"trials": [best, none], "best": None})
    (tmp_path / "trials.json").write_text(search.model_dump_json(exclude={"best"}))
    assert SearchSoFar.model_validate_json((tmp_path / "trials.json").read_text()).trials[0].settings == {
        **tried,
        "optimizer.groups": tuple(groups),
    }
    assert write_study_of(tmp_path / "trials.json", spec, tmp_path / "study.log") == (2, 2)
    # The file has its keys in another order by now, and one choice more.
    today = space({"at_steps": [10], "from_sequences": 4}, None, {"from_sequences": 2, "at_steps": [5, 10]}).space
    for file in ("study.log", "trials.json"):
        found = read_earlier(tmp_path / file, today, 90).outcomes
        assert [each.settings for each in found] == [
            {"ema": {"decay": 0.9}, "batch_ramp": tried["batch_ramp"], "optimizer.groups": tuple(frozen)},
            {"ema": None, "batch_ramp": None, "optimizer.groups": ()},
        ]


def test_a_study_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_study(summary(), SPEC, tmp_path / "none" / "study.log")


def test_a_file_of_a_space_that_has_changed_is_written_as_far_as_it_lies_in_todays(tmp_path: Path) -> None:
    """A condition was added since, under which a list has fewer values; and a figure is none."""
    best, other, _ = summary().model_copy(update={"best": None}).model_dump(mode="json")["trials"]
    other["settings"]["optimizer.momentum"] = 0.5
    file = {
        **summary().model_dump(mode="json", exclude={"best"}),
        "best": {},
        "trials": [best, other, {**best, "value": math.nan}],
    }
    (tmp_path / "trials.json").write_text(json.dumps(file))
    assert write_study_of(tmp_path / "trials.json", SPEC, tmp_path / "study.log") == (2, 3)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log")))
    written = optuna.load_study(study_name="tiny", storage=storage).trials
    assert [sorted(trial.params) for trial in written] == [
        ["optimizer.kind", "optimizer.lr"],
        ["optimizer.kind", "optimizer.lr", "optimizer.momentum"],
    ]
