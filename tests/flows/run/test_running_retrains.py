"""What a retrain on this machine is at, and which of its processes are stopped or silent."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from rich.console import Console

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Link, Snapshot
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.flow_ledgers import start_ticks
from headway.flows.config.request import RetrainRequest
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.run.running_retrains import RunningRetrain, words
from headway.flows.run.session import session
from headway.flows.show.status import print_status, read_status
from headway.tasks.core.stage_records import STAGES
from headway.training.launch.base.launcher import Handle, draw_token
from headway.training.launch.base.process_tree import process_state
from headway.training.launch.base.protocol import TOKEN, read_json, write_json
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Ledger
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE
from tests.waiting import wait_until

pytestmark = pytest.mark.process

RUN = "0123456789abcdef"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(str(tmp_path / "workspace"))


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Processes that stand for a flow, a guard or a rank, and are ended with the test."""
    with contextlib.ExitStack() as started:

        def start(token: str = "") -> subprocess.Popen[bytes]:
            environment = {**os.environ, TOKEN: token} if token else None
            made = started.enter_context(subprocess.Popen(["sleep", "600"], env=environment))
            started.callback(made.kill)
            return made

        yield start


def flow(workspace: Workspace, pid: int, *events: tuple[str, dict[str, Any]]) -> Ledger:
    ledger = Ledger(workspace.local_path("ledger/one/flow.jsonl"), process="flow", flow_run="one")
    here = {"host": socket.gethostname(), "pid": pid, "start_ticks": start_ticks(pid)}
    ledger.event("flow.begin", pipeline="tiny", **here)
    for name, fields in events:
        ledger.event(name, **fields)
    return ledger


def halt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process_state(process.pid) == "T")


def shown(workspace: Workspace) -> str:
    stream = io.StringIO()
    print_status(read_status(workspace.uri), Console(file=stream, width=80, highlight=False))
    return " ".join(stream.getvalue().split())


def metrics(workspace: Workspace) -> str:
    return generate_latest(WorkspaceMetrics(workspace)).decode()


@pytest.mark.parametrize("stage", STAGES)
def test_each_of_the_seven_stages_is_named_with_its_age(workspace, process, stage: str) -> None:
    at = process()
    before = [(name, {"task": other}) for other in STAGES[: STAGES.index(stage)] for name in ("task.begin",)]
    ledger = flow(workspace, at.pid, *before, ("task.begin", {"task": stage}))
    (running,) = read_status(workspace.uri).running
    assert (running.pipeline, running.stage, running.pid) == ("tiny", stage, at.pid)
    assert abs(time.time() - running.since_unix_s) < 60
    assert f"tiny RUNNING stage {stage}, for " in shown(workspace)
    assert f'train_run_info{{flow_run="one",pipeline="tiny",run="",stage="{stage}"}} 1.0' in metrics(workspace)
    ledger.event("flow.end")
    assert read_status(workspace.uri).running == []


def record(workspace: Workspace, stage: str, document: Link, *, duration_s: float, unix_s: float = 1.0) -> None:
    provenance: dict[str, str | float] = {"pipeline": "tiny", "unix_s": unix_s, "duration_s": duration_s}
    stages.record(workspace, stage, {"at": unix_s}, document, provenance=provenance)


def test_a_stage_of_data_tells_its_rows_its_rate_and_when_it_ends(workspace, process) -> None:
    snapshot = Snapshot(format="parquet", columns={}, num_rows=1000, files=())
    record(workspace, "snapshot", workspace.publish_document(snapshot), duration_s=1.0)
    ledger = flow(workspace, process().pid, ("task.begin", {"task": "shard"}))
    assert "rows" not in shown(workspace), "nothing is counted yet, and no run before tells"
    ledger.event("shard.group", group=0, split="train", rows=3, source_rows=250)
    (running,) = read_status(workspace.uri).running
    assert (running.rows_done, running.num_rows) == (250, 1000) and running.eta_s is not None
    text = shown(workspace)
    assert "rows 250 of 1,000 (25%), " in text and " rows/s" in text and "ETA shard ends in " in text


def test_a_stage_without_counts_ends_when_it_did_the_last_time(workspace, process) -> None:
    document = workspace.publish_document(Snapshot(format="parquet", columns={}, num_rows=1000, files=()))
    record(workspace, "validate", document, duration_s=3600.0)
    flow(workspace, process().pid, ("task.begin", {"task": "validate"}))
    (running,) = read_status(workspace.uri).running
    assert running.eta_s is not None and 3000 < running.eta_s <= 3600
    text = shown(workspace)
    assert "ETA validate ends in " in text and "of the time it took last)" in text
    record(workspace, "validate", document, duration_s=0.0, unix_s=2.0)
    assert "ETA takes longer than last time" in shown(workspace)


@pytest.mark.parametrize("now_unix_s", [5.0, 4.0])
def test_a_stage_that_took_no_time_before_has_no_share_of_it(now_unix_s: float) -> None:
    """Also where two clocks differ."""
    retrain = RunningRetrain(pipeline="tiny", flow_run="f", pid=1, stage="validate", since_unix_s=5.0)
    known = retrain.model_copy(update={"last_took_s": 0.0, "eta_s": 0.0})
    assert words(known, now_unix_s)["ETA"] == "takes longer than last time (0 s)"


def test_a_flow_that_was_killed_is_not_running(workspace, process) -> None:
    killed = process()
    flow(workspace, killed.pid, ("task.begin", {"task": "launch"}))
    killed.kill()
    killed.wait()
    assert read_status(workspace.uri).running == []


def test_the_flow_that_holds_a_session_is_seen_by_its_own_ledger(tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    request = RetrainRequest(pipeline=str(tmp_path / "tiny.yaml"), workspace=str(tmp_path / "workspace"))
    with session(request) as (run, _):
        (running,) = read_status(run.workspace.uri).running
        assert (running.pid, running.flow_run) == (os.getpid(), run.budget_scope)
    assert read_status(request.workspace).running == []


@pytest.fixture
def training(workspace, process) -> dict[str, subprocess.Popen[bytes]]:
    """A flow at stage launch, in its second attempt of five, at step 40 of 120; a guard and two ranks."""
    run_dir = workspace.local_path(f"runs/{RUN}")
    attempt = run_dir / "attempts" / "002"
    (attempt / "ledger").mkdir(parents=True)
    token = draw_token(run_dir)
    processes = {"flow": process(), **{name: process(token) for name in ("guard", "agent", "rank 0", "rank 1")}}
    for number in (1, 2):
        AttemptRecords(run_dir).begin(AttemptRecord(attempt=number, scope="one"))
    Handle(launcher="local", host=socket.gethostname(), owner_pid=1, token=token, attempt=2).save(run_dir)
    node = {"node": 0, "guard_pid": processes["guard"].pid, "agent_pid": processes["agent"].pid, "state": "running"}
    write_json(attempt / "node-0.json", node)
    write_json(attempt / "node-0.vitals.json", {"unix_s": time.time(), "ranks": []})
    for rank in (0, 1):
        marker = {"rank": rank, "pid": processes[f"rank {rank}"].pid, "parent_pid": 1, "state": "running"}
        write_json(attempt / f"rank-{rank}.json", {**marker, "unix_s": time.time()})
        spool = Ledger(attempt / "ledger" / f"rank-{rank}.jsonl")
        for step in range(31, 41):
            spool.event("step", step=step, duration_s=0.0, tokens=64)
    for step in (20, 40):
        (run_dir / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    # The later one is still being written.
    (run_dir / "checkpoints" / "step-00000020" / "manifest.json").write_text("{}")
    folder = {"run": RUN, "path": str(run_dir), "max_attempts": 5, "max_steps": 120, "targets": "examples"}
    flow(workspace, processes["flow"].pid, ("task.begin", {"task": "launch"}), ("run.folder", folder))
    return processes


def test_training_tells_its_attempt_steps_eta_and_each_ranks_last_sign_of_life(workspace, training) -> None:
    (running,) = read_status(workspace.uri).running
    assert (running.run, running.attempt, running.max_attempts) == (RUN, 2, 5)
    assert (running.step, running.max_steps) == (40, 120)
    assert running.eta_s is not None and running.eta_s >= 0
    assert running.checkpoint_step == 20 and running.checkpoint_unix_s is not None
    assert 0 <= time.time() - running.checkpoint_unix_s < 3600
    assert [rank.rank for rank in running.ranks] == [0, 1] and running.problems == []
    text = shown(workspace)
    for message in (
        "attempt 2 of 5",
        "step 40 of 120 (33%)",
        "steps/s",
        "checkpoint step 20,",
        "ETA training ends in",
        "last sign of life of rank 0 ",
    ):
        assert message in text, text
    assert 'train_run_attempt{pipeline="tiny"}' in metrics(workspace)


def test_each_ranks_newest_step_and_a_slow_one_s_work_are_told(workspace, training) -> None:
    ledger = workspace.local_path(f"runs/{RUN}/attempts/002/ledger")
    parts = {"data_s": 0.0, "forward_s": 0.1, "backward_s": 0.1, "optimizer_s": 0.0, "sync_s": 0.3}
    slow = parts | {"backward_s": 0.4, "sync_s": 0.0}
    assert [rank.work_ratio for rank in read_status(workspace.uri).running[0].ranks] == [None, None]
    assert " work" not in shown(workspace)
    for rank, own, last in ((0, parts, 71), (1, slow, 61)):
        spool = Ledger(ledger / f"rank-{rank}.jsonl")
        for step in range(41, last):
            spool.event("step", step=step, duration_s=0.5, tokens=64, **own)
    (running,) = read_status(workspace.uri).running
    assert [rank.step for rank in running.ranks] == [70, 60]
    assert [rank.work_ratio for rank in running.ranks] == pytest.approx([0.4, 2.5])
    assert "slow rank 1 works 2.5 times as long a step as the others" in shown(workspace)
    text = metrics(workspace)
    assert 'train_rank_step{pipeline="tiny",rank="1"} 60.0' in text
    assert 'train_rank_work_ratio{pipeline="tiny",rank="1"} 2.5' in text
    # Ranks of two stages of a pipeline do other work.
    event = {"event": "model", "unix_s": 1.0, "world_size": 2, "num_stages": 2}
    for rank in (0, 1):
        spool_file = ledger / f"rank-{rank}.jsonl"
        spool_file.write_text(json.dumps(event) + "\n" + spool_file.read_text())
    assert [rank.work_ratio for rank in read_status(workspace.uri).running[0].ranks] == [None, None]


@pytest.mark.parametrize("role", ["flow", "guard", "agent", "rank 1"])
def test_a_process_that_is_stopped_is_named_with_what_lets_it_go_on(workspace, training, role: str) -> None:
    halt(training[role])
    (running,) = read_status(workspace.uri).running
    (problem,) = running.problems
    pid = training[role].pid
    assert (problem.role, problem.pid, problem.state) == (role, pid, "stopped")
    assert f"{role} (pid {pid}) is stopped by a signal" in shown(workspace)
    assert f"`kill -CONT {pid}`" in problem.advice
    assert f'train_process_problem{{pipeline="tiny",role="{role}",state="stopped"}} 1.0' in metrics(workspace)


def test_a_rank_and_a_guard_that_fell_silent_are_named(workspace, training) -> None:
    attempt = workspace.local_path(f"runs/{RUN}/attempts/002")
    long_ago = time.time() - 600
    write_json(attempt / "node-0.vitals.json", {"unix_s": long_ago, "ranks": []})
    marker = {"rank": 1, "pid": training["rank 1"].pid, "parent_pid": 1, "state": "running", "unix_s": long_ago}
    write_json(attempt / "rank-1.json", marker)
    os.utime(attempt / "ledger" / "rank-1.jsonl", (long_ago, long_ago))
    (running,) = read_status(workspace.uri).running
    assert {(problem.role, problem.state) for problem in running.problems} == {
        ("guard", "silent"),
        ("rank 1", "silent"),
    }


def test_a_run_that_is_trained_and_is_being_verified_is_not_said_to_be_finished(workspace, training) -> None:
    run_dir = workspace.local_path(f"runs/{RUN}")
    (run_dir / "result.json").write_text("{}")
    ledger = Ledger(workspace.local_path("ledger/one/flow.jsonl"))
    ledger.event("task", task="launch", duration_s=0.0)
    ledger.event("task.begin", task="verify")
    assert f"{RUN} trained, in stage verify" in shown(workspace)


def test_a_line_that_another_user_planted_is_no_retrain_and_leads_nowhere_else(workspace, training, process) -> None:
    elsewhere = workspace.local_root.parent / "elsewhere"
    (elsewhere / "attempts" / "001").mkdir(parents=True)
    at = process()
    here = {"host": socket.gethostname(), "pid": at.pid, "start_ticks": start_ticks(at.pid)}
    whole = {"flow_run": "x", "pipeline": "planted", **here}
    for number, left_out in enumerate(("pipeline", "flow_run", "pid", "")):
        spool = Ledger(workspace.local_path(f"ledger/planted{number}/flow.jsonl"))
        spool.event("flow.begin", **{name: value for name, value in whole.items() if name != left_out})
        for name in ("run.waiting", "run.wait", "task"):
            spool.event(name, task="launch")
        spool.event("task.begin", task="launch")
        spool.event("run.folder", path=str(elsewhere))
    planted = [each for each in read_status(workspace.uri).running if each.pid == at.pid]
    assert [(each.flow_run, each.attempt, each.ranks) for each in planted] == [("x", None, [])]
    assert not planted[0].problems


@pytest.mark.parametrize("name", ["node-0.json", "node-0.vitals.json", "rank-1.json"])
@pytest.mark.parametrize("value", ["x", None, [], 1 << 80])
def test_a_record_of_an_attempt_that_is_damaged_costs_no_more_than_what_it_says(
    workspace, training, name: str, value: Any
) -> None:
    path = workspace.local_path(f"runs/{RUN}/attempts/002/{name}")
    record = read_json(path)
    assert record is not None
    for field in record:
        write_json(path, record | {field: value})
        (running,) = read_status(workspace.uri).running
        assert running.pipeline == "tiny" and shown(workspace)
