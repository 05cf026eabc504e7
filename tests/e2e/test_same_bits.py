"""From scratch or after a kill, here or elsewhere: the same shards, weights and figures, bit for bit."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from prometheus_client.exposition import generate_latest

from headway.data_contracts.store.documents import EvaluationReport, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.show.goodput import read_goodput
from headway.training.launch.base.process_tree import process_state

pytestmark = pytest.mark.long


def shards(project) -> dict[str, bytes]:
    return {path.relative_to(project.workspace).as_posix(): path.read_bytes() for path in project.files("shards/**/*")}


def evaluation(project) -> EvaluationReport:
    return EvaluationReport.from_bytes(project.file("documents/evaluation/*.json").read_bytes(), where="")


@pytest.mark.long
def test_two_runs_from_scratch_give_the_same_shards_weights_and_metrics(project, new_project, retrain_here) -> None:
    retrain_here(new_project)
    assert shards(new_project) == shards(project) != {}
    for kind in ("snapshot", "receipt", "fitted", "manifest", "run", "checkpoint", "evaluation", "registration"):
        assert {p.stem for p in new_project.files(f"documents/{kind}/*.json")} == {
            p.stem for p in project.files(f"documents/{kind}/*.json")
        }, kind
    assert new_project.result() == project.result()
    assert evaluation(new_project).metrics == evaluation(project).metrics
    manifest = ShardManifest.from_bytes(project.file("documents/manifest/*.json").read_bytes(), where="")
    assert manifest.num_rows("train") > manifest.num_rows("heldout") > 0


def test_a_run_whose_rank_is_killed_on_the_way_gives_the_same_bits(project, retrain_here, wait_until) -> None:
    undisturbed = project.result()
    project.forget_training()
    exported: list[str] = []

    def kill() -> None:
        metrics = WorkspaceMetrics(Workspace(str(project.workspace)))
        wait_until(lambda: project.newest_step() >= 25)
        os.kill(project.rank_pid(1), signal.SIGSTOP)
        wait_until(lambda: process_state(project.rank_pid(1)) == "T")
        exported.append(generate_latest(metrics).decode())
        os.kill(project.rank_pid(1), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    summary, events = retrain_here(project, guarded=True)
    killer.join()
    (retry,) = (event for event in events if event["event"] == "attempt.retry")
    assert "rank 1 was killed" in retry["what"]
    assert len(project.attempts()) == 2, "the kill came in mid-training"
    (restored,) = (event for event in project.rank_events(project.attempts()[1]) if event["event"] == "restore")
    assert restored["step"] >= 20, "it went on from a checkpoint"
    assert project.result() == undisturbed
    assert summary.stages_run == ["launch"], "so even the checkpoint's manifest is the same, and all is found"
    assert project.living() == []
    account = read_goodput(str(project.workspace), "")
    assert sum(account.parts_device_s.values()) == pytest.approx(account.device_s, rel=0.01)
    assert account.device_s == pytest.approx(account.wall_s * account.devices)
    (recovery,) = account.recoveries
    assert (recovery.cause, recovery.lost_steps) == ("infrastructure", account.num_redone_steps)
    assert recovery.parts_s.keys() >= {"teardown", "start", "rendezvous", "restore"}
    assert account.waste_device_s["infrastructure"] == pytest.approx(recovery.total_s * account.devices)
    exported.append(generate_latest(WorkspaceMetrics(Workspace(str(project.workspace)))).decode())
    live, over = map(values_of, exported)
    (problem,) = (series for series in live if series.startswith("train_process_problem"))
    assert 'role="rank 1",state="stopped"' in problem
    assert live["train_steps_total"] >= 25 and any(series.startswith("train_rank_heartbeat") for series in live)
    assert over["train_steps_total"] >= account.num_steps + account.num_redone_steps
    assert over['train_interruptions_total{cause="infrastructure"}'] >= 1
    assert over['train_resume_total{outcome="ok"}'] >= 1
    assert not any(series.startswith(("train_run_info", "train_process_problem")) for series in over)


def values_of(exported: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in exported.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}
