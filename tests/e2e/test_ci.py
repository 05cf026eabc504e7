"""`headway ci` trains for real: a smoke that leaves no trace, a full run that a gate judges, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DEADLINE_S = 1200.0
ENCODER = """\
import pathlib
import time

from headway.data_contracts.store.documents import Frozen


class Options(Frozen):
    column: str


class Stuck:
    spec_type = Options

    @classmethod
    def fit(cls, spec, batches):
        pathlib.Path({marker!r}).touch()
        time.sleep(600)

    def __init__(self, spec, learnt):
        pass

    def encode(self, batch):
        return {{}}
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def commit(project) -> None:
    git(project.root, "init", "--initial-branch", "main")
    git(project.root, "add", "*.yaml", "texts")
    git(project.root, "commit", "--message", "base")


def ci(project, *options: str) -> tuple[int, dict, str]:
    process = project.start("ci", "tiny.yaml", "--json", *options)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, json.loads(out) if out else {}, err


def outcomes(report: dict) -> dict[str, str]:
    return {result["check"]: result["outcome"] for result in report["results"]}


@pytest.mark.long
def test_a_smoke_retrain_ends_proved_and_touches_neither_registry_nor_workspace(new_project) -> None:
    project, scratch = new_project, new_project.root / "scratch"
    scratch.mkdir()
    commit(project)
    team = f"sqlite:///{project.root}/team.db"
    project.edit("tiny.yaml", "registry: {model: tiny}", f"registry: {{model: tiny, tracking_uri: '{team}'}}")
    project.settings.update(TMPDIR=str(scratch), MLFLOW_TRACKING_URI=team, GITHUB_STEP_SUMMARY=str(scratch / "step.md"))
    code, report, err = ci(project, "--base", "main", "--junit", "scratch/ci.xml")
    assert code == 0, err
    asked = ("contract", "config", "recipe", "encoder", "stages", "smoke", "verify")
    assert outcomes(report) == {
        **dict.fromkeys(asked, "passed"),
        **dict.fromkeys(("trials", "full", "quality"), "skipped"),
    }
    smoke, verify = report["results"][5:7]
    assert smoke["reason"].startswith("4 steps on 60 of 60 files") and verify["reason"].startswith("proved")
    assert "| smoke | ✅ passed |" in (scratch / "step.md").read_text()
    assert ET.parse(scratch / "ci.xml").find("testsuite").get("failures") == "0"

    assert not project.workspace.exists() and not (project.root / "team.db").exists()
    assert sorted(path.name for path in scratch.glob("headway-ci-*")) == []
    assert project.everybody() == []


def test_ctrl_c_in_a_smoke_retrain_leaves_no_process_and_no_folder(new_project, wait_until) -> None:
    project, scratch, marker = new_project, new_project.root / "scratch", new_project.root / "fitting"
    scratch.mkdir()
    (project.root / "mine.py").write_text(ENCODER.format(marker=str(marker)))
    project.edit(
        "tiny.yaml",
        "encoder: {kind: byte-pair, vocab_size: 300, sequence_tokens: 32}",
        "encoder: {kind: own, name: 'mine:Stuck', options: {column: text}}",
    )
    project.edit("tiny.yaml", "recipe: {model: {width: 32, depth: 1, heads: 1, hidden: 32}}", "recipe: {name: 'my:R'}")
    (project.root / "my.py").write_text("class R: pass\n")
    project.settings["TMPDIR"] = str(scratch)
    process = project.start("ci", "tiny.yaml", "--summary", "ci.md")
    wait_until(lambda: marker.exists() or process.poll() is not None)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and "Traceback" not in err
    assert "| smoke | ➖ skipped |" in (page := (project.root / "ci.md").read_text()) and "interrupted" in page
    assert sorted(path.name for path in scratch.glob("headway-ci-*")) == []
    wait_until(lambda: project.everybody() == [])


@pytest.mark.long
def test_a_worse_model_blocks_the_merge_and_the_champion_stays(project) -> None:
    def registry() -> list[tuple[str, bytes]]:
        return [(str(path), path.read_bytes()) for path in project.files("refs/models/**/*")]

    before = registry()
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 5")
    code, report, err = ci(project, "--no-smoke", "--full", "--workspace", str(project.workspace))
    assert code == 7, err
    assert (outcomes(report)["full"], outcomes(report)["quality"]) == ("passed", "failed")
    assert "does not beat the champion" in report["results"][-1]["reason"]
    from headway.flows.show.status import read_status

    assert [model.champion for model in read_status(str(project.workspace)).models] == ["1"]
    assert registry() == before, "no version, no alias and no decision: nobody asked for one"


@pytest.mark.long
def test_settings_that_are_worse_over_seeds_than_the_bases_block_the_merge_and_nothing_is_registered(
    new_project,
) -> None:
    project = new_project
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 30")
    project.edit("tiny.yaml", "evaluation: {", "evaluation: {ranking_share: 0.5, ")
    commit(project)
    project.edit("tiny.yaml", "max_steps: 30", "max_steps: 3")
    code, report, err = ci(
        project, "--no-smoke", "--base", "main", "--trials", "2", "--workspace", str(project.workspace)
    )
    result = next(result for result in report["results"] if result["check"] == "trials")
    assert (code, result["outcome"]) == (7, "failed"), err
    assert result["reason"].startswith("worse: this less the other, paired over 2 seeds: +")
    assert [line.partition(";")[0] for line in result["details"]] == [
        *("the change: max_steps 3", "the base: max_steps 30")
    ]
    assert project.files("refs/models/**/*") == []
