"""`headway trials` before it spends anything."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headway.flows.cli.command_line import run
from headway.flows.trials.report import as_yaml

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


def test_a_dry_run_shows_every_trial(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write(TRIALS)
    code, out, _ = trials(capsys, monkeypatch, "--dry-run", "--json")
    assert code == 0
    wanted = json.loads(out)
    assert [each["trial"] for each in wanted] == [1, 2, 3, 4]
    assert wanted[2]["settings"] == {"optimizer.lr": 0.1, "recipe.model.width": 16}
    code, out, _ = trials(capsys, monkeypatch, "--dry-run")
    assert code == 0 and out.splitlines()[0].split() == ["trial", "optimizer.lr", "recipe.model.width"]
    assert not (project / "workspace" / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("optimizer.lr:", "optimizer.rl:", "`training` has no setting `optimizer.rl`. Did you mean `lr`?"),
        ("recipe.model.width:", "recipe.model.widht:", "trial 1 (optimizer.lr 0.01   recipe.model.widht 16)"),
        ("[16, 32]", "[16, 33]", "trial 2 (optimizer.lr 0.01   recipe.model.width 33)"),
        ("{ranking_share: 0.5}", "{}", "Say which share, such as `evaluation: {ranking_share: 0.5}`."),
        ("  vary:", "  draw: 3\n  vary:", "unknown key `draw`. Did you mean `draws`?"),
        (TRIALS, "", "the pipeline file has no trials. Say what varies:"),
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
    assert as_yaml(best) == (
        "training: {optimizer: {lr: 0.003}, recipe: {model: {width: 32, norm: null}}, precision: bf16}"
    )
