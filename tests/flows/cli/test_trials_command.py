"""`headway trials` before it spends anything."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from headway.flows.cli import trials as trials_command
from headway.flows.cli.command_line import run
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.request import TrialsRequest
from headway.flows.run.session import session
from headway.flows.trials.report import as_yaml
from headway.tasks.search import pace
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.earlier_trials import SearchedData, read_earlier
from headway.tasks.search.rungs import AttemptPace
from headway.training.config.order_spec import MixedDataset, OrderSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec
from tests.flows.trials.test_search_page import row, searched

TRIALS = """\
evaluation: {ranking_share: 0.5}
trials:
  vary:
    optimizer.lr: [0.01, 0.1]
    recipe.model.width: [16, 32]
"""


def trials(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["headway", "trials", "tiny.yaml", *options])
    code = run()
    message = capsys.readouterr()
    return code, message.out, message.err


@pytest.mark.parametrize(("options", "waits_s"), [((), None), (("--wait",), 3650 * 86400), (("--wait", "90s"), 90)])
def test_a_search_waits_for_another_process_as_its_refusal_advises(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    waits_s: float | None,
) -> None:
    requests: list[TrialsRequest] = []
    monkeypatch.setattr(trials_command, "_check_and_run", lambda request, *_, **__: requests.append(request))
    assert trials(capsys, monkeypatch, *options) == (0, "", "")
    assert [request.wait_s for request in requests] == [waits_s]
    with session(requests[0]) as (run, _):
        assert run.wait_s == waits_s


def test_a_dry_run_shows_every_trial(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(TRIALS)
    code, out, _ = trials(capsys, monkeypatch, "--dry-run", "--json")
    assert code == 0
    wanted = json.loads(out)
    assert [each["trial"] for each in wanted["drawn"]] == [1, 2, 3, 4]
    assert wanted["drawn"][2]["settings"] == {"optimizer.lr": 0.1, "recipe.model.width": 16}
    assert wanted["num_steps"] == wanted["num_steps_of_all"] == 4 * 500
    code, out, _ = trials(capsys, monkeypatch, "--dry-run")
    assert code == 0 and out.splitlines()[0].split() == ["trial", "optimizer.lr", "recipe.model.width"]
    assert not (project / "workspace" / "runs").exists()


def test_a_dry_run_says_how_many_come_to_each_rung_and_what_share_of_all_steps_that_is(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(
            "evaluation: {ranking_share: 0.5}\ntrials:\n  search: tpe\n  draws: 9\n  rounds: 6\n"
            "  finalist_seeds: 3\n  rungs: {first: 60, eta: 3}\n  vary: {optimizer.lr: {log_uniform: [0.001, 0.1]}}\n"
        )
    code, out, _ = trials(capsys, monkeypatch, "--dry-run")
    assert code == 0
    later, rungs, steps, finalists = (line.split(maxsplit=1) for line in out.splitlines()[-4:])
    assert later == ["later", "45 trials more, by what those before came to"]
    assert rungs == ["rungs", "9 to 60   3 to 180   1 to 500, in each of 6 rounds"]
    spent = 6 * (9 * 60 + 3 * 120 + 320)
    assert steps == ["steps", f"about {spent:,}, {spent / 27_000:.0%} of the 27,000 of all trials to their ends"]
    assert finalists == ["finalists", "the best two with 2 more seeds: 2,000 steps besides"]
    code, out, _ = trials(capsys, monkeypatch, "--dry-run", "--json")
    assert json.loads(out) | {"drawn": []} == {
        "drawn": [],
        "num_trials": 54,
        "rounds": 6,
        "levels": [60, 180, 500],
        "num_at_each": [9, 3, 1],
        "num_steps": spent,
        "num_steps_of_all": 27_000,
        "num_other_seeds": 2,
        "warm_start": "",
        "num_shards": 0,
        "budget": "",
        "expected_s": None,
    }


def test_a_dry_run_leaves_out_rounds_that_the_budget_does(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(
            "evaluation: {ranking_share: 0.5}\ntrials:\n  draws: 9\n  rounds: 6\n  budget: {steps: 3000}\n"
            "  rungs: {first: 60, eta: 3}\n  vary: {optimizer.lr: {log_uniform: [0.001, 0.1]}}\n"
        )
    code, out, _ = trials(capsys, monkeypatch, "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 0 and (plan["num_trials"], plan["rounds"], len(plan["drawn"])) == (18, 2, 18)
    assert plan["num_steps"] == 2 * (9 * 60 + 3 * 120 + 320)
    assert plan["budget"] == "3,000 steps" and plan["expected_s"] is None, "nobody knows what a step takes"
    (project / "workspace" / "stages").mkdir(parents=True)
    monkeypatch.setattr(pace, "last_pace", lambda workspace, pipeline: AttemptPace(start_s=3.0, step_s=0.1))
    monkeypatch.setattr(pace, "_has_started", lambda *_: True)
    code, out, _ = trials(capsys, monkeypatch, "--dry-run")
    time, budget = (line.split(maxsplit=1)[1] for line in out.splitlines()[-2:])
    assert code == 0 and time == "about 5 min 22 s in turn, by this pipeline's last run here"  # 26 starts, 2,440 steps
    assert budget == "3,000 steps, with what its trials have spent before"


def test_a_dry_run_says_of_what_day_the_data_of_a_warm_start_are_and_a_file_becomes_a_study(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(
            "evaluation: {ranking_share: 0.5}\ntrials:\n  search: tpe\n  draws: 4\n  rounds: 2\n"
            "  warm_start: earlier.json\n  vary: {optimizer.lr: {log_uniform: [0.001, 0.1]}}\n"
        )
    rows = [row(number, {"optimizer.lr": number / 40}, 1.0, 3) for number in range(1, 6)]
    data = SearchedData(snapshot="a" * 64, unix_s=1785542400.0)
    earlier = searched(rows, data=data, pipeline="tiny").model_dump(mode="json")
    (project / "earlier.json").write_text(json.dumps(earlier))
    code, out, _ = trials(capsys, monkeypatch, "--dry-run")
    assert code == 0
    assert out.splitlines()[0].split(maxsplit=1)[1] == (
        "4 trials, by 4 of 5 trials of earlier.json, of data of 2026-08-01, the best of them first"
    )
    code, out, err = trials(capsys, monkeypatch, "--study", "study.log", "--from", "earlier.json")
    assert (code, out) == (0, "study.log: 4 of 5 trials of earlier.json\n"), err
    wanted = load_pipeline(project / "tiny.yaml").trials
    assert wanted is not None
    again = read_earlier(project / "study.log", wanted.space, 500)
    assert again.on("tiny", "a" * 64) == "4 of 4 trials of study.log, of today's data"
    assert not (project / "workspace" / "ledger").exists()
    (project / "other.json").write_text(json.dumps({**earlier, "trials": earlier["trials"][4:]}))
    for name, words in (("other.json", "no trial that lies in the space"), ("tiny.yaml", "is no search's trials.json")):
        code, _, err = trials(capsys, monkeypatch, "--study", "none.log", "--from", name)
        assert code == 2 and words in " ".join(err.split()) and not (project / "none.log").exists()


@pytest.mark.parametrize(
    ("budget", "words"), [("{}", "say steps, hours or usd"), ("{hours: 0}", "greater than 0"), ("{usd: 5}", "prices")]
)
def test_a_budget_that_bounds_nothing_is_refused_at_once(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, budget: str, words: str
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(TRIALS.replace("  vary:", f"  budget: {budget}\n  vary:"))
    code, out, err = trials(capsys, monkeypatch, "--dry-run")
    assert code == 2 and not out and words in err and "trials.budget" in err


def test_rungs_that_are_too_short_for_what_starts_took_here_are_refused_before_anything_is_made(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(TRIALS.replace("  vary:", "  rungs: [60, 180]\n  vary:"))
    assert trials(capsys, monkeypatch, "--dry-run")[0] == 0, "nobody knows what a start takes"
    (project / "workspace" / "stages").mkdir()
    monkeypatch.setattr(pace, "last_pace", lambda workspace, pipeline: AttemptPace(start_s=3.0, step_s=0.01))
    code, out, err = trials(capsys, monkeypatch)
    assert code == 2 and not out
    assert "trains 60 steps x 10 ms = 0.6 s, and starting to takes 3 s: less than 20 starts, 60 s" in err
    assert not (project / "workspace" / "ledger").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("optimizer.lr:", "optimizer.rl:", "`training` has no setting `optimizer.rl`. Did you mean `lr`?"),
        ("recipe.model.width:", "recipe.model.widht:", "trial 1 (optimizer.lr 0.01   recipe.model.widht 16)"),
        ("[16, 32]", "[16, 33]", "trial 2 (optimizer.lr 0.01   recipe.model.width 33)"),
        ("{ranking_share: 0.5}", "{}", "Say which share, such as `evaluation: {ranking_share: 0.5}`."),
        ("  vary:", "  draw: 3\n  vary:", "unknown key `draw`. Did you mean `draws`?"),
        (TRIALS, "", "the pipeline file has no trials. Say what varies:"),
        ("  vary:", "  search: tpe\n  vary:", "search tpe draws settings: say how many a round has"),
        ("  vary:", "  rungs: [60, 60]\n  vary:", "60 follows 60, and each is to be more than the one before"),
        ("  vary:", "  rungs: [60, 2000]\n  vary:", "a rung at step 2,000 is none of a run of 500 steps"),
        ("  vary:", "  rungs: {first: 10}\n  vary:", "10 / 30 = 33% of its peak there at most"),
        (
            "  vary:",
            "  rungs: [60]\n  vary:\n    max_steps: [100, 200]",
            "are to be of one length, and `max_steps` varies",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    words: str,
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(TRIALS.replace(old, new))
    code, out, err = trials(capsys, monkeypatch)
    assert code == 2 and not out
    assert words in err and "tiny" in err
    assert not (project / "workspace" / "ledger").exists()


def test_what_to_keep_is_written_as_a_pipeline_file_has_it() -> None:
    best = {"optimizer.lr": 0.003, "recipe.model.width": 32, "recipe.model.norm": None, "precision": "bf16"}
    base = Configuration(training=TrainingSpec(), shards=ShardSpec())
    training = "training: {optimizer: {lr: 0.003}, recipe: {model: {width: 32, norm: null}}, precision: bf16}"
    assert as_yaml(best, base) == training
    ema = {"ema.decay": 0.9, "ema": {}, "schedule": {"kind": "linear"}}
    assert as_yaml(ema, base.with_settings(ema)) == "training: {ema: {decay: 0.9}, schedule: {kind: linear}}"
    both = {"shards.encoder.vocab_size": 512, **best, "shards.seed": 3}
    assert as_yaml(both, base) == "shards: {encoder: {vocab_size: 512}, seed: 3}\n" + training
    datasets = [MixedDataset(manifest=letter * 64) for letter in "ab"]
    mixed = replace(base, training=TrainingSpec(order=OrderSpec(mix=tuple(datasets))))
    weights = {"order.weight": 2, "order.mix.1.weight": 3}
    kept = yaml.safe_load(as_yaml(weights, mixed.with_settings(weights)))
    order = OrderSpec.model_validate(kept["training"]["order"])
    assert order.weights == [2, 1, 3] and [each.manifest[0] for each in order.mix] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--against", ""), "name a pipeline file"),
        (("--seeds", "2"), "it goes with --against"),
        (("--against", "tiny.yaml", "--study", "s.log"), "a study is of a search"),
        (("--from", "trials.json"), "it goes with --study"),
        (("--study", "s.log", "--from", "none.json"), "cannot be read"),
        (("--against", "tiny.yaml", "--seeds", "0"), "greater than or equal to 1"),
        (("--against", "none.yaml"), "no such pipeline file"),
        (("--against", "."), "no such pipeline file"),
        (("--against", "contract.yaml"), "contract.yaml"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_spent(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    words: str,
) -> None:
    file = project / "tiny.yaml"
    file.write_text(file.read_text() + TRIALS)
    code, _, err = trials(capsys, monkeypatch, *options)
    assert code == 2 and words in " ".join(err.split()) and "Traceback" not in err
    assert not (project / "workspace" / "runs").exists()


def test_a_comparison_says_what_differs_and_that_nothing_does(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / "tiny.yaml"
    file.write_text(file.read_text() + TRIALS)
    (project / "other.yaml").write_text(file.read_text().replace("width: 16,", "width: 32,"))
    code, out, err = trials(capsys, monkeypatch, "--against", "other.yaml", "--dry-run", "--seeds", "2")
    assert code == 0 and "recipe.model.width" in out and "each with 2 seeds" in out, err
    code, out, _ = trials(capsys, monkeypatch, "--against", "tiny.yaml", "--dry-run")
    assert code == 0 and "settings are the same" in out
