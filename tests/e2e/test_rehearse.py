"""`headway rehearse` trains for real and touches nothing that counts; what it foretells, the real run would meet."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError
from headway.flows.rehearse.report import RehearsalReport
from tests.e2e.in_prefect import failed_in_prefect
from tests.waiting import DEADLINE_S

CLOSED = 'windows: {time_zone: UTC, open: [{days: [mon], start: "03:00", end: "04:00"}]}'
OWN = """\
import torch

from headway.training.recipes.language_model import LanguageModel


class Hungry(LanguageModel):
    def losses(self, model, batch):
        if len(next(iter(batch.values()))) > 2:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        return super().losses(model, batch)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def rehearse_here(prefect_here: None, forked_gangs: None):
    """The rehearsal in this process, its ranks forks: its report, and the error it ended with."""
    from headway.flows.config.request import RetrainRequest
    from headway.flows.rehearse.rehearsing import RehearsalRunner

    def run(project, *, steps: int = 4, keep: bool = False) -> tuple[RehearsalReport, HeadwayError | None]:
        told: list[RehearsalReport] = []
        request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
        error: HeadwayError | None = None
        try:
            RehearsalRunner(request, steps=steps, keep=keep, on_event=lambda _event: None).run(told.append)
        except HeadwayError as failed:
            error = failed
        assert told, error
        return told[0], error

    return run


@pytest.mark.long
def test_a_rehearsal_goes_through_every_stage_and_touches_nothing_that_counts(project, here, rehearse_here) -> None:
    assert here("hold", str(project.pipeline), "--workspace", str(project.workspace), "--why", "so").returncode == 0
    project.edit("tiny.yaml", "registry: {model: tiny}", f"registry: {{model: tiny}}\n{CLOSED}")
    before = contents(project.root)

    report, error = rehearse_here(project)

    assert error is None and report.faults == [] and report.exit_code == 0, error
    assert contents(project.root) == before
    assert failed_in_prefect(project) == [], "its first half stops half-way, and fails nothing"
    stages = {cost.stage: cost for cost in report.stages}
    assert list(stages) == ["snapshot", "validate", "shard", "launch", "verify", "evaluate", "register"]
    assert report.steps == 4 and report.real_steps == 120 and report.data == "60 of 60 files"
    assert report.checkpoint is not None and report.checkpoint.restore_s is not None, "by the whole gang"
    assert report.step_s and report.real_training_s and report.real_training_s > 110 * report.step_s
    assert sorted(report.peak_memory_bytes) == [0, 1] and min(report.peak_memory_bytes.values()) > 10e6
    assert report.needed_bytes and report.needed_bytes > 4 * report.checkpoint.size_bytes


def test_what_would_fail_is_named_and_nothing_is_left(new_project, rehearse_here) -> None:
    project = new_project
    (project.root / "mine.py").write_text(OWN)
    project.edit("tiny.yaml", "recipe: {model:", "recipe: {name: 'mine:Hungry', model:")

    report, error = rehearse_here(project)

    assert error is not None and report.exit_code == 6
    assert "out of memory (tried to allocate 80 GiB)" in report.faults[0]
    assert "micro-batch of 4" in report.faults[0] and "rank " in report.faults[0]
    assert [cost.stage for cost in report.stages] == ["snapshot", "validate", "shard", "launch"]
    assert list(project.workspace.iterdir()) == []


@pytest.mark.long
def test_a_secret_that_ranks_lack_is_named_before_one_is_started(new_project) -> None:
    project = new_project
    lacks = "launch: {nodes: 1, ranks_per_node: 2, preflight: {environment: [A_TOKEN, B_TOKEN]}}"
    project.edit("tiny.yaml", "launch: {nodes: 1, ranks_per_node: 2}", lacks)
    done = project.headway("rehearse", "tiny.yaml", "--json", "--keep")
    report = RehearsalReport.model_validate_json(done.stdout)
    assert done.returncode == report.exit_code == EnvironmentProblem.exit_code, done.stderr
    assert "A_TOKEN is not set" in report.faults[0] and "B_TOKEN is not set" in report.faults[0]
    assert "no rank was started" in done.stderr.splitlines()[-1]
    (kept,) = (project.workspace / "rehearsals").iterdir()
    assert report.kept == str(kept) and list(kept.glob("workspace/stages/shard/*.json"))
    assert not list(kept.glob("workspace/runs/*/attempts/*/rank-*.json"))
    assert project.everybody() == []
    assert [path.name for path in project.workspace.iterdir()] == ["rehearsals"]
    assert report.steps == 6


@pytest.mark.long
def test_ctrl_c_in_a_rehearsal_leaves_no_process_and_no_file(new_project, wait_until) -> None:
    project = new_project
    flow = project.start("rehearse", "tiny.yaml")
    ranks = "rehearsals/*/workspace/runs/*/attempts/*/rank-*.json"
    wait_until(lambda: list(project.workspace.glob(ranks)) or flow.poll() is not None)
    os.killpg(flow.pid, signal.SIGINT)
    _, err = flow.communicate(timeout=DEADLINE_S)
    assert flow.returncode == 130, err
    assert err.splitlines()[-1] == "headway: ended; what was rehearsed is removed." and "Traceback" not in err
    wait_until(lambda: project.everybody() == [])
    assert not project.workspace.exists()
