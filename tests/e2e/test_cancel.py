"""Interrupted in mid-training, in every way: nothing keeps running, and the next retrain goes on to the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.cli import command_line
from headway.flows.console.command_signals import HungUp, Terminated
from headway.flows.console.prefect_settings import RECORDS
from headway.flows.show.status import read_status
from headway.training.engine.profiling import POLL_EVERY_S
from headway.training.observe.ledger import read_events
from tests.listening import listening
from tests.stranger import stranger
from tests.warm_programs import Program, take_terminal

pytestmark = pytest.mark.long


@contextlib.contextmanager
def held(project) -> Iterator[None]:
    """The ranks stand still meanwhile, so that what is asked of the run is asked in mid-training."""
    pids = [project.rank_pid(rank) for rank in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def in_mid_training(project, wait_until, number: signal.Signals) -> subprocess.Popen[str]:
    """A retrain that has a checkpoint and is on its way to the next; its ranks stand still. The one that Ctrl-C is for
    has a Prefect server of its own."""
    project.forget_the_model()
    if number is signal.SIGINT:
        project.settings[RECORDS] = "1"
    flow: subprocess.Popen[str] = project.start("retrain", "tiny.yaml")
    hold_in_mid_training(project, flow, wait_until)
    return flow


def hold_in_mid_training(
    project,
    flow: subprocess.Popen[str],
    wait_until: Callable[..., object],
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    has_own_server = RECORDS in project.settings

    def is_there() -> bool:
        meanwhile()
        return project.newest_step() >= 25 or flow.poll() is not None

    wait_until(is_there)
    for rank in (0, 1):  # at once, for a tiny training is over in a moment; `held` lets them go on
        os.kill(project.rank_pid(rank), signal.SIGSTOP)
    assert flow.poll() is None and len(project.living()) >= 4, "guard, agent, two ranks"
    assert len(project.everybody()) >= (8 if has_own_server else 6), "and the flow; its server; a reaper for each"


def own_server_port(project) -> int:
    """Of the Prefect server that the retrain has started for itself."""
    named = "headway.flows.prefect_api.server_process"
    servers = [pid for pid in project.everybody() if named in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    ((_, port),) = {door for pid in servers for door in listening(pid)}
    return port


def guard_state(status: Path) -> str:
    state: str = json.loads(status.read_bytes())["state"]
    return state


def one_message(text: str) -> bool:
    return len(text.strip().splitlines()) == 1 and "Traceback" not in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "to_group", "exit_code", "word"),
    [
        # A closed terminal's way, and Ctrl-C's end.
        pytest.param(signal.SIGTERM, False, 143, "terminated", id="SIGTERM"),
        pytest.param(signal.SIGINT, True, 130, "interrupted", id="Ctrl-C"),
        pytest.param(signal.SIGKILL, False, -signal.SIGKILL, "", id="SIGKILL"),
    ],
)
def test_an_interrupted_retrain_leaves_no_process_and_is_continued_to_the_same_bits(
    project,
    finished,
    in_mid_training: subprocess.Popen[str],
    wait_until: Callable[..., object],
    train_here,
    number: signal.Signals,
    to_group: bool,
    exit_code: int,
    word: str,
) -> None:
    with held(project):
        doors = {door for pid in project.everybody() for door in listening(pid)}
        assert {address for address, _ in doors} == {"127.0.0.1"}, "of every process of a retrain"
        if number is signal.SIGINT:
            assert stranger(own_server_port(project)).let_in == {}, "its server is nobody else's"
        (os.killpg if to_group else os.kill)(in_mid_training.pid, number)
        wait_until(lambda: "stopping" in {guard_state(path) for path in project.files("runs/*/attempts/*/node-?.json")})
    wait_until(lambda: in_mid_training.poll() is not None and not project.everybody())
    out, err = in_mid_training.communicate()
    assert in_mid_training.returncode == exit_code, err
    if word:
        assert one_message(err) and err.startswith(f"headway: {word};"), err
    assert not (project.run_dir() / "result.json").exists()
    assert not project.files("stages/launch/*.json")
    done_steps = [int(path.parent.name.removeprefix("step-")) for path in project.files("runs/*/checkpoints/*/m*.json")]
    assert not word or f"the checkpoint of step {max(done_steps)}\n" in out
    train_here(project)
    (restored,) = (event for event in project.rank_events(project.attempts()[-1]) if event["event"] == "restore")
    assert restored["step"] == max(done_steps) >= 20
    expected = json.loads(next(finished.pristine.glob("workspace/runs/*/result.json")).read_bytes())
    assert project.result()["tensors_sha256"] == expected["tensors_sha256"]


@pytest.fixture
def on_a_terminal(project, shared_server) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A retrain in a terminal of its own, and the terminal's other end."""
    project.forget_the_model()
    project.settings |= shared_server
    screen, terminal = os.openpty()
    os.set_blocking(screen, False)
    flow = Program(
        [sys.executable, str(Path(sys.executable).with_name("headway")), "retrain", "tiny.yaml"],
        cwd=project.root,
        env=project.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(terminal)
    project.started.append(flow)
    yield flow, screen


def test_a_closed_terminal_leaves_no_process_and_a_checkpoint(project, on_a_terminal, wait_until) -> None:
    flow, screen = on_a_terminal

    def read_the_screen() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(screen, 1 << 16)

    hold_in_mid_training(project, flow, wait_until, read_the_screen)
    with held(project):
        os.close(screen)
        wait_until(lambda: "stopping" in {guard_state(path) for path in project.files("runs/*/attempts/*/node-?.json")})
    wait_until(lambda: flow.poll() is not None and not project.everybody())
    assert flow.returncode == 129
    assert (
        max(int(path.parent.name.removeprefix("step-")) for path in project.files("runs/*/checkpoints/*/m*.json")) > 20
    )


@pytest.mark.parametrize(
    ("end", "exit_code", "word"),
    [(HungUp, 129, "the terminal was closed"), (Terminated, 143, "terminated")],
)
def test_what_a_signal_made_of_a_command_is_told_in_one_line(
    here, monkeypatch: pytest.MonkeyPatch, end: type[BaseException], exit_code: int, word: str
) -> None:
    def ended(**_options: object) -> None:
        raise end

    monkeypatch.setattr(command_line, "command_line", lambda name: ended)
    done = here("retrain")
    assert done.returncode == exit_code and one_message(done.stderr)
    assert done.stderr.startswith(f"headway: {word};")


@pytest.mark.long
def test_a_run_can_be_watched_is_nobody_elses_and_can_be_stopped_and_continued(
    project, finished, here, train_here, wait_until, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.forget_the_model()
    in_mid_training = project.start("retrain", "tiny.yaml")
    hold_in_mid_training(project, in_mid_training, wait_until)
    run = project.run_dir().name
    monkeypatch.chdir(project.root)
    wait_until(lambda: project.files("runs/*/checkpoints/*/m*.json"))
    with held(project):
        status = json.loads(here("status", "--json").stdout)
        shown = here("status").stdout
        with pytest.raises(EnvironmentProblem, match=f"pid {in_mid_training.pid}") as refused:
            train_here(project, guarded=True)
        profiled = here("profile", run[:6], "--steps", "1000")
        stopped = here("stop", run[:6], "--why", "the night is over")
        # Ranks look for requests once a second; one that looked just before would hear of the stop alone.
        asked_s = time.monotonic()
        wait_until(lambda: time.monotonic() - asked_s > POLL_EVERY_S)
    assert refused.value.exit_code == 8 and len(project.attempts()) == 1, "a second retrain disturbs nothing"
    (is_running,) = status["runs"]
    assert is_running["run"] == run and is_running["is_running"] and not is_running["finished"]
    assert is_running["step"] >= 25 and is_running["num_checkpoints"] >= 1
    assert f"pid {in_mid_training.pid}" in is_running["owner"]
    assert run in shown and "running" in shown
    assert stopped.returncode == 0 and run in stopped.stdout
    _, err = in_mid_training.communicate()
    assert in_mid_training.returncode == 75, err
    assert one_message(err), err
    assert project.living() == []
    assert profiled.returncode == 0, profiled.stderr
    pattern = Path(profiled.stdout.splitlines()[-1])
    traces = sorted(project.run_dir().glob(str(pattern.relative_to(project.run_dir()))))
    assert len(traces) == 2, "of each rank; what is open when the run ends is written"
    assert all(json.loads(trace.read_bytes())["traceEvents"] for trace in traces)
    newest = max(int(p.parent.name.removeprefix("step-")) for p in project.files("runs/*/checkpoints/*/manifest.json"))
    assert newest >= is_running["step"], "a checkpoint was kept where it stopped"
    (idle,) = json.loads(here("status", "--json").stdout)["runs"]
    assert not idle["is_running"] and not idle["finished"]
    for command in ("stop", "profile"):
        assert here(command, run).returncode == 2, "nothing runs any more"
    train_here(project)
    (restored,) = (event for event in project.rank_events(project.attempts()[-1]) if event["event"] == "restore")
    assert restored["step"] == newest
    expected = json.loads(next(finished.pristine.glob("workspace/runs/*/result.json")).read_bytes())
    assert project.result()["tensors_sha256"] == expected["tensors_sha256"]


@pytest.mark.long
def test_a_retrain_bounded_to_a_step_ends_there_and_the_command_it_names_continues_to_the_same_bits(
    project, shared_server, finished, train_here
) -> None:
    project.forget_the_model()
    project.settings |= shared_server
    stopped = project.retrain("--stop-at-step", "33")
    assert stopped.returncode == 75, stopped.stderr
    assert one_message(stopped.stderr), stopped.stderr
    command = "headway retrain tiny.yaml"
    assert "step reached: stopped at step 33 of 120; a checkpoint was kept." in stopped.stderr
    assert f"{command}` continues it." in stopped.stderr
    assert max(int(p.parent.name[5:]) for p in project.files("runs/*/checkpoints/*/manifest.json")) == 33
    flows = [event for path in project.files("ledger/*/flow.jsonl") for event in read_events(path)]
    started = [event["stop"] for event in flows if event["event"] == "flow.begin" and "stop" in event]
    told = [event["reason"] for event in flows if event["event"] in ("run.stopped", "flow.stopped")]
    assert (started, told) == (["after step 33"], ["step reached", "step reached"])
    (run,) = read_status(str(project.workspace)).runs
    assert "stopped at step 33" in run.ended and run.continued_by.endswith(
        f"headway resume {run.run} --pipeline tiny.yaml"
    )
    train_here(project)
    expected = json.loads(next(finished.pristine.glob("workspace/runs/*/result.json")).read_bytes())
    assert project.result()["tensors_sha256"] == expected["tensors_sha256"]
    (run,) = read_status(str(project.workspace)).runs
    assert run.finished and run.ended.endswith("before the retrain's last stage was done."), "it was trained alone"
