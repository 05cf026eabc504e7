"""A retrain by hand that was killed is Crashed in Prefect from the next command on; one that lives is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from headway.training.launch.base.process_tree import die_with_parent
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program

pytestmark = pytest.mark.process

COMMAND = """
import sys, time
from headway.flows.console.environment import prepare
prepare()
from prefect import flow, task
from prefect.runtime import flow_run
from headway.flows.prefect_api.ephemeral_server import prefect_api
from headway.flows.config.request import RetrainRequest
from headway.flows.windows.admission import entered, keeping_to_windows

@task
def trains():
    print(flow_run.id, flush=True)
    sys.stdin.read()

@flow
@keeping_to_windows
def retrain(request: RetrainRequest):
    trains()

entered.set(RetrainRequest(pipeline="tiny"))
with prefect_api():
    retrain(entered.get())
print("ended", flush=True)
"""
Start = Callable[[], tuple[subprocess.Popen[str], UUID]]


@pytest.fixture
def start(prefect_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A command whose flow run trains until it is told to end: its process, and its flow run's id."""
    from tests import shared_prefect

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], UUID]:
        process = Program(
            (sys.executable, "-c", COMMAND),
            env=os.environ | shared_prefect.api().settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        started.append(process)
        assert process.stdout is not None
        return process, UUID(process.stdout.readline().strip())

    yield start
    for each in started:
        each.kill()
        each.communicate()


def state(flow_run: UUID) -> tuple[str, str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        now = client.read_flow_run(flow_run).state
    assert now is not None
    return str(now.type.value), str(now.message or "")


def task_states(flow_run: UUID) -> list[str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    return [str(each.state.type.value) for each in found if each.state is not None]


def test_a_killed_retrain_is_crashed_from_the_next_command_on_and_one_that_lives_or_is_halted_runs_on(
    start: Start, tmp_path: Path
) -> None:
    from headway.flows.prefect_api.ephemeral_server import prefect_api

    killed, dead = start()
    lives, alive = start()
    wait_until(lambda: task_states(dead) == ["RUNNING"], what="the task run", every_s=0.2)
    killed.kill()
    killed.wait(DEADLINE_S)
    lives.send_signal(signal.SIGSTOP)
    assert state(dead)[0] == state(alive)[0] == "RUNNING"

    with prefect_api():
        kind, message = state(dead)
        assert kind == "CRASHED" and f"pid {killed.pid} on" in message
        assert task_states(dead) == ["CRASHED"]
        assert state(alive)[0] == "RUNNING"

    lives.send_signal(signal.SIGCONT)
    out, _ = lives.communicate(timeout=DEADLINE_S)
    assert out == "ended\n" and state(alive)[0] == "COMPLETED"
    assert list((tmp_path / "home" / "headway" / "flow-runs").iterdir()) == []


def test_a_claim_that_this_server_knows_nothing_of_waits_for_its_own(
    prefect_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from headway.flows.prefect_api import flow_run_claims
    from headway.flows.prefect_api.flow_run_claims import MACHINE, end_killed_flow_runs

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    claim = flow_run_claims._folder() / f"{MACHINE}-{UUID(int=7)}"
    claim.write_text("pid 1 on another\n")
    assert end_killed_flow_runs() == 0 and claim.exists()
    monkeypatch.setattr(flow_run_claims, "UNKNOWN_FOR_S", -1.0)
    assert end_killed_flow_runs() == 0 and not claim.exists()
    assert caplog.records == []
