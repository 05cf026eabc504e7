"""Endings on this machine alone: of ranks, agents, guards and supervisors, and of the command in every way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import ATTEMPT_DIR, TOKEN, AttemptFiles
from headway.training.observe.ledger import read_events
from tests.cluster.conftest import OwnedRun
from tests.cluster.namespaces import NamespaceHost
from tests.e2e.project import Project
from tests.known_processes import describe, is_gone, known_processes
from tests.soak.orphan_table import Trial
from tests.training.conftest import TINY, TinyProject, make_project
from tests.waiting import wait_until

PATIENCE_S = 60.0
"""How long a trial waits for an end that should come much sooner."""
STEP_PATIENCE_S = 240.0
"""And for the next step."""
NEXT_STEP_S = 10.0
LONG = TINY.model_copy(update={"checkpoints": CheckpointSpec(every_steps=20)})
NUM_STEPS = 800
"""For endings while it trains, however slowly the machine sees them through."""
ENDLESS = ("--steps", "999999", "--children")
PATIENT = {"max_attempts": 1000, "max_cycles_without_progress": 1000, "backoff_s": 0.0, "peer_grace_s": 1.0}
STOP = "headway stop"
GANG = ("rank", "agent", "guard")
COMMAND: dict[str, Callable[[Project, int], object]] = {
    "SIGKILL": lambda _project, pid: os.kill(pid, signal.SIGKILL),
    "SIGTERM": lambda _project, pid: os.kill(pid, signal.SIGTERM),
    "Ctrl-C": lambda _project, pid: os.killpg(pid, signal.SIGINT),
    STOP: lambda project, _pid: project.headway("stop", project.run_dir().name),
}
"""Ways to end a retrain that was started from a shell."""


def measure_end(trial: Trial, left: Callable[[], list[int]], started_s: float) -> None:
    """Fill in when nobody was left, and how many were past the bound.

    Args:
        started_s: when the ending began, by the monotonic clock.
    """
    trial.gone_s = _gone_s(trial, left, started_s)


def measure_whole_end(trial: Trial, left: Callable[[], Collection[int]], started_s: float) -> None:
    """The same for all of a run, its flow included."""
    trial.all_gone_s = _gone_s(trial, left, started_s)


def _gone_s(trial: Trial, left: Callable[[], Collection[int]], started_s: float) -> float | None:
    while now_left := left():
        waited_s = time.monotonic() - started_s
        if waited_s > trial.bound_s:
            trial.num_left = max(trial.num_left, len(now_left))
            trial.left = trial.left or [describe(pid) for pid in now_left]
        if waited_s > PATIENCE_S:
            return None
        time.sleep(0.02)
    return round(time.monotonic() - started_s, 3)


def newest_attempt(folder: Path) -> int:
    return max((int(path.name) for path in (folder / "attempts").glob("[0-9]*")), default=0)


def first_step_unix_s(folder: Path, attempt: int) -> float | None:
    """When an attempt had made its first step; None while it has not."""
    found = []
    for spool in attempt_folder(folder, attempt).glob("ledger/rank-*.jsonl"):
        for event in read_events(spool):
            if event["event"] == "step":
                found.append(float(event["unix_s"]) + float(event.get("duration_s", 0.0)))
                break
    return min(found, default=None)


def measure_next_step(
    trial: Trial, folder: Path, attempt: int, started_unix_s: float, problem: Callable[[], str]
) -> None:
    """Fill in how long the next step took, and whether the very next attempt made it."""

    def stepped() -> int:
        assert not problem(), problem()
        later = range(attempt + 1, newest_attempt(folder) + 1)
        return next((number for number in later if first_step_unix_s(folder, number) is not None), 0)

    number = wait_until(stepped, what=f"a step after attempt {attempt}", within_s=STEP_PATIENCE_S)
    trial.connected = number == attempt + 1
    trial.next_step_s = round((first_step_unix_s(folder, number) or 0.0) - started_unix_s, 3)


def pid_of(folder: Path, victim: str) -> int:
    """Of node 1 in the newest attempt, as this machine counts."""
    files = AttemptFiles(attempt_folder(folder, newest_attempt(folder)))
    status = wait_until(lambda: files.read_status(1), what="a word of the guard")
    markers = wait_until(
        lambda: [marker for marker in files.read_markers().values() if marker.node == 1], what="a word of the rank"
    )
    return {"rank": markers[0].pid, "agent": status.agent_pid, "guard": status.guard_pid}[victim]


class Bits:
    """The real worker's project, and what a run that nobody disturbs ends with."""

    def __init__(self, folder: Path, num_steps: int) -> None:
        self._project: TinyProject = make_project(folder / "project")
        run = self._project.publish_run(LONG.model_copy(update={"max_steps": num_steps}))
        self.words = ("--workspace", self._project.workspace.uri, "--run-spec", run.sha256)
        (undisturbed := folder / "undisturbed").mkdir()
        assert self._project.train(run, undisturbed, world_size=2) == [0, 0]
        self._expected = self._of(undisturbed)

    def are_those_of(self, run: OwnedRun) -> bool:
        """Once it has come to its end."""
        assert run.ends() == 0, run.message[-2000:]
        return self._of(run.folder) == self._expected

    @staticmethod
    def _of(folder: Path) -> str:
        return str(json.loads((folder / "result.json").read_bytes())["tensors_sha256"])


@contextlib.contextmanager
def owned(folder: Path, spec: LaunchSpec, head: NamespaceHost | None = None, **others: Any) -> Iterator[OwnedRun]:
    """A run's folder and owner, which end with the body."""
    folder.mkdir(parents=True)
    run = OwnedRun(folder, spec, head, **others)
    try:
        yield run
    finally:
        run.end()
        shutil.rmtree(folder, ignore_errors=True)


def gang_trials(folder: Path, bits: Bits) -> Iterator[list[Trial]]:
    """One run whose rank, agent and guard are killed in turn, and that comes to its end then; again and again."""
    while True:
        with owned(folder / "gang", LaunchSpec(**PATIENT)) as run:  # type: ignore[arg-type]
            run.begin(*bits.words, module="headway.training.programs.worker")
            trials = [kill_one_of_the_gang(run, victim) for victim in GANG]
            equal = bits.are_those_of(run)
            for trial in trials:
                trial.equal_bits = equal
        yield trials


def kill_one_of_the_gang(run: OwnedRun, victim: str) -> Trial:
    trial = Trial(where="local", victim=victim, how="SIGKILL", target_s=NEXT_STEP_S)
    run.until_it_steps(run.number or 1)
    pid = pid_of(run.folder, victim)
    return fault(trial, run.folder, lambda: os.kill(pid, signal.SIGKILL), problem=lambda: problem_of(run))


def connection_trials(folder: Path) -> Iterator[list[Trial]]:
    """One run of ranks that only meet, under torchrun, one of which is killed in each attempt."""
    with owned(folder / "connections", LaunchSpec(**PATIENT)) as run:  # type: ignore[arg-type]
        run.begin("--steps", "999999999", module="gloo_worker")
        while True:
            yield [kill_one_of_a_group(run)]


def kill_one_of_a_group(run: OwnedRun) -> Trial:
    """Any rank: the next attempt's have to meet anew."""
    trial = Trial(where="local", victim="rank of a bare process group", how="SIGKILL", target_s=NEXT_STEP_S)
    run.until_it_steps(run.number or 1)
    victim = random.choice(list(run.files.read_markers().values()))
    return fault(trial, run.folder, lambda: os.kill(victim.pid, signal.SIGKILL), problem=lambda: problem_of(run))


def problem_of(run: OwnedRun) -> str:
    """Why no step can follow any more; empty while one can."""
    return run.message[-2000:] if run.owners[-1].poll() else ""


def fault(
    trial: Trial, folder: Path, happen: Callable[[], object], *, problem: Callable[[], str] = lambda: ""
) -> Trial:
    """Let something happen to the attempt that goes on, and measure until it is gone and the next has made a step.

    Args:
        folder: the run's.
        problem: why no step can follow any more; empty while one can.
    """
    attempt, there = newest_attempt(folder), processes_of(folder)
    started_s, started_unix_s = time.monotonic(), time.time()
    happen()
    measure_end(trial, lambda: left_of(folder, attempt, there), started_s)
    measure_next_step(trial, folder, attempt, started_unix_s, problem)
    return trial


def processes_of(folder: Path) -> dict[int, str]:
    """All of a run on every host: number here, and beginning."""
    handle = Handle.load(folder)
    return {} if handle is None else known_processes(TOKEN, handle.token)


def left_of(folder: Path, attempt: int, there: dict[int, str]) -> list[int]:
    """Of an attempt's processes, those alive: known ones, and what carries the name of its folder."""
    known = [pid for pid, started in there.items() if not is_gone(pid, started)]
    return known or processes_with(ATTEMPT_DIR, str(attempt_folder(folder, attempt)))


def supervisor_trials(folder: Path) -> Iterator[list[Trial]]:
    while True:
        with owned(folder / "supervisor", LaunchSpec(**PATIENT)) as run:  # type: ignore[arg-type]
            run.begin(*ENDLESS)
            run.until_it_steps(1)
            trial = kill_the_supervisor(run, "local")
        yield [trial]


def kill_the_supervisor(run: OwnedRun, where: str) -> Trial:
    trial, token, started_s = Trial(where=where, victim="supervisor", how="SIGKILL"), run.token, time.monotonic()
    run.signal_owner(signal.SIGKILL)
    measure_end(trial, lambda: processes_with(TOKEN, token), started_s)
    return trial


def command_trials(folder: Path) -> Iterator[list[Trial]]:
    """One `headway retrain` for each way of ending it; what comes before training is found after the first."""
    project = Project.create(folder / "command", folder / "prefect")
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 1000000")
    while True:
        yield [end_a_command(project, how) for how in COMMAND]


def end_a_command(project: Project, how: str) -> Trial:
    trial = Trial(where="local", victim="flow", how=how)
    try:
        flow = project.start("retrain", "tiny.yaml")
        wait_until(lambda: project.newest_step() >= 3 or flow.poll() is not None, what="training", every_s=0.05)
        assert flow.poll() is None, flow.communicate()
        asked_s = time.monotonic()
        COMMAND[how](project, flow.pid)
        # A command that asks takes its own time to start; what was asked for by it counts from its answer on.
        started_s = time.monotonic() if how == STOP else asked_s
        measure_end(trial, project.living, started_s)
        measure_whole_end(
            trial, lambda: [*project.everybody(), *([flow.pid] if flow.poll() is None else [])], started_s
        )
    finally:
        project.clean_up()
        shutil.rmtree(project.workspace / "runs", ignore_errors=True)
    return trial
