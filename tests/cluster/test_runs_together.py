"""Several detached runs watched by one flow: one array of a real Slurm's, or so many jobs of an emulated Kubernetes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import HeadwayError, RunStopped, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.run_result import final_checkpoint
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles, attempt_numbers
from headway.training.launch.base.stop_request import request_stop
from headway.training.launch.jobs.follow import follow_all
from headway.training.launch.jobs.scheduler import JobState
from headway.training.launch.slurm.commands import run_command
from headway.training.launch.slurm.job_array import array_name
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.observe.ledger import Ledger, read_events
from tests.cluster.conftest import delete_all, kubernetes_spec, ssh_spec
from tests.cluster.detached_run import LONG, REPOSITORY, DetachedRun
from tests.cluster.kubernetes_recorder import KubernetesRecorder
from tests.cluster.namespaces import NamespaceHosts
from tests.cluster.slurm import SlurmCluster
from tests.cluster.test_slurm import SPEC, Run, give_notice
from tests.cluster.tiny_trials import END, LEDGER, RUNG, TinyTrials, tiny_trials
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program, run_program

ONE_NODE = SPEC.model_copy(update={"nodes": 1, "max_attempts": 1})


@pytest.fixture
def runs(slurm: SlurmCluster, tmp_path: Path) -> Iterator[list[Run]]:
    folders = [tmp_path / "runs of 100%" / f"{number}123456789abcdef" for number in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
    made = [Run(folder, ONE_NODE, cluster=slurm) for folder in folders]
    yield made
    for flow in made[0].flows:
        flow.kill()
        flow.wait()
    slurm.cancel_all()
    assert [run.survivors() for run in made] == [[], [], []]


def follow(
    runs: Sequence[DetachedRun],
    *arguments: tuple[str, ...],
    at_once: int = 2,
    act: Callable[[], object] = lambda: None,
) -> list[HeadwayError | None]:
    """As a flow does that has so many trials to train.

    Args:
        act: called as often as the flow looks.
    """

    def no_step() -> None:
        act()

    spec = runs[0].spec
    watched = [(run.gang(*given, nodes=1), no_step) for run, given in zip(runs, arguments, strict=True)]
    ends: dict[int, HeadwayError | None] = {}
    follow_all(
        scheduler_for(spec),
        spec,
        watched,
        ledger=Ledger(runs[0].folder / "owner.jsonl"),
        budget_scope="one",
        at_once=at_once,
        tolerable=lambda error: isinstance(error, TrainingFailed),
        ended=ends.__setitem__,
    )
    return [ends[number] for number in range(len(runs))]


def start_flow(runs: Sequence[Run], *arguments: str) -> subprocess.Popen[str]:
    """The same in a process of its own, to be killed."""
    folders = json.dumps([str(run.folder) for run in runs])
    with (runs[0].folder / "flows.log").open("ab") as log:
        flow = Program(
            [sys.executable, "-m", "tests.cluster.watching_runs", ONE_NODE.model_dump_json(), folders, *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=log,
            stderr=log,
        )
    runs[0].flows.append(flow)
    return flow


def array_of(runs: Sequence[Run]) -> str:
    """The number of the one array of these runs."""
    shown = runs[0].cluster.command("scontrol", "--oneliner", "show", "job").splitlines()
    name = array_name([run.folder for run in runs])
    numbers = {line.partition("ArrayJobId=")[2].split()[0] for line in shown if f"JobName={name} " in line}
    (number,) = numbers
    return number


def test_runs_of_an_array_come_to_their_own_ends_so_many_at_a_time(runs: list[Run]) -> None:
    trouble = ("--trouble", json.dumps({"kind": "kill", "step": 3}), *LONG)
    ends = follow(runs, ("--steps", "6"), trouble, ("--steps", "9"), at_once=1)

    assert ends[0] is None and ends[2] is None and isinstance(ends[1], TrainingFailed)
    assert [run.records() for run in runs] == [["done"], ["failed"], ["done"]]
    assert [run.handle().job for run in runs] == [f"{array_of(runs)}_{index}" for index in range(3)]
    assert [run.newest_step(1) for run in runs][::2] == [6, 9]
    spans = sorted((event["unix_s"], event["unix_s"] + event["duration_s"]) for event in runs[0].events("attempt"))
    assert len(spans) == 3 and all(ended <= started for (_, ended), (started, _) in pairwise(spans))
    for run in runs:
        assert run.files.log(run.handle().job).exists()
        assert len(list(run.files.folder.glob("job-*.jsonl"))) == 1


def test_a_flow_that_dies_finds_its_array_again_and_so_does_one_that_watches_a_single_run_of_it(
    runs: list[Run],
) -> None:
    enough = runs[0].folder / "enough"
    flow = start_flow(runs, "--until", str(enough))
    for run in runs[:2]:
        run.wait_for_step()
    flow.kill()
    flow.wait()
    # As if it had died before it could write down what was queued.
    for run in runs:
        left = run.handle()
        left.model_copy(update={"job": "", "log": ""}).save(run.files)

    alone = runs[0].start_flow(ONE_NODE, "--until", str(enough))
    wait_until(lambda: runs[0].handle().job == f"{array_of(runs)}_0", what="the element, found by its run alone")
    alone.kill()
    alone.wait()

    def touch_when_found() -> None:
        if all(run.handle().job for run in runs):
            enough.touch()

    ends = follow(runs, *[("--until", str(enough))] * 3, act=touch_when_found)

    assert ends == [None, None, None]
    assert [run.records() for run in runs] == [["done"]] * 3, "one attempt each"
    assert [run.handle().job for run in runs] == [f"{array_of(runs)}_{index}" for index in range(3)]
    assert len(runs[0].events("job.submitted")) == 3, "by the first flow alone"


def test_a_stop_of_one_keeps_checkpoints_of_all_and_what_waits_leaves_the_queue(runs: list[Run]) -> None:
    flow = start_flow(runs, *LONG)
    for run in runs[:2]:
        run.wait_for_step()
    # It would begin in the place of the one that is stopped, before anybody can take it out of the queue.
    run_command("scontrol", "hold", runs[2].handle().job)

    request_stop(runs[1].folder, "enough")

    assert flow.wait(DEADLINE_S) == RunStopped.exit_code, (runs[0].folder / "flows.log").read_text()
    assert [run.checkpoint() >= 3 for run in runs] == [True, True, False]
    assert [run.records() for run in runs] == [["stopped"], ["stopped"], []]
    wait_until(lambda: all(run.state().has_ended for run in runs), what="the array's end")
    assert runs[2].state() is JobState.CANCELLED


def test_notice_to_an_element_puts_it_alone_back_into_the_queue(runs: list[Run]) -> None:
    enough = runs[0].folder / "enough"
    flow = start_flow(runs[:2], "--until", str(enough))
    for run in runs[:2]:
        run.wait_for_step()

    give_notice(runs[1].handle())

    runs[1].wait_for_step(attempt=2)
    assert runs[1].first_step(2) == runs[1].checkpoint() + 1 or runs[1].first_step(2) > 3
    enough.touch()
    assert flow.wait(DEADLINE_S) == 0, (runs[0].folder / "flows.log").read_text()
    assert [run.records() for run in runs[:2]] == [["done"], ["stopped", "done"]]
    started = [event for event in runs[0].events("job.begin") if event["job"].endswith("_1")]
    assert [event["restarts"] for event in started] == [0, 1]


def test_on_kubernetes_runs_are_jobs_of_which_so_many_are_there_at_a_time(
    kubernetes: KubernetesRecorder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: delete_all(kubernetes))
    spec = kubernetes_spec(tmp_path, nodes=1, max_attempts=1)
    runs = [DetachedRun(tmp_path / f"{number}123456789abcdef", spec) for number in range(3)]
    for run in runs:
        run.folder.mkdir()
    trouble = ("--trouble", json.dumps({"kind": "kill", "step": 3}), *LONG)

    ends = follow(runs, ("--steps", "6"), trouble, ("--steps", "9"), at_once=1)

    assert ends[0] is None and ends[2] is None and isinstance(ends[1], TrainingFailed)
    assert [run.records() for run in runs] == [["done"], ["failed"], ["done"]]
    assert len({run.handle().job for run in runs}) == 3
    spans = sorted((event["unix_s"], event["unix_s"] + event["duration_s"]) for event in runs[0].events("attempt"))
    assert len(spans) == 3 and all(ended <= started for (_, ended), (started, _) in pairwise(spans))


def stages_of(workspace: Workspace) -> list[Path]:
    return sorted((workspace.local_root / "stages" / "launch").glob("*.json"))


def require_one_each(trials: TinyTrials) -> None:
    """Trains them as a search does: to a rung, to their ends, and again for nothing."""
    workspace, ledger = trials.context.workspace, trials.context.base / LEDGER
    paused = trials.train(to_step=RUNG)
    assert [each.error for each in paused] == [None, None, None]
    assert [trials.step_of(each) for each in paused] == [RUNG, RUNG, RUNG]
    assert trials.train(to_step=RUNG) == paused
    tried = trials.train()
    assert [each.error for each in tried] == [None, None, None]
    submitted = [event for event in read_events(ledger) if event["event"] == "job.submitted"]
    assert len(submitted) == 6, "one for each trial and rung"
    assert len({final_checkpoint(trials.context, each.run)[1].sha256 for each in tried}) == 3
    made = [json.loads(path.read_bytes())["provenance"] for path in stages_of(workspace)]
    assert len(made) == 3 and min(each["duration_s"] for each in made) > 0.5, "what `headway plan` expects"
    assert [each["num_steps"] for each in made] == [END, END, END]
    assert trials.train() == tried
    after = [event for event in read_events(ledger) if event["event"] == "job.submitted"]
    assert after == submitted, "found, and nothing queued"


def test_trials_of_a_pipeline_are_one_array_and_each_is_on_record_as_soon_as_it_ends(
    slurm: SlurmCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(slurm.cancel_all)
    with tiny_trials(tmp_path, ONE_NODE) as trials:
        require_one_each(trials)
    submitted = [event for event in read_events(tmp_path / LEDGER) if event["event"] == "job.submitted"]
    assert [event["job"].partition("_")[2] for event in submitted] == ["0", "1", "2"] * 2, "an array for each rung"


def test_on_kubernetes_trials_are_jobs_that_pause_at_a_rung_and_go_on(
    kubernetes: KubernetesRecorder, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: delete_all(kubernetes))
    with tiny_trials(tmp_path, kubernetes_spec(tmp_path, toys=False, nodes=1, max_attempts=1)) as trials:
        require_one_each(trials)


def test_on_ssh_hosts_trials_share_the_hosts_and_one_that_stays_paused_keeps_one_checkpoint(
    hosts: NamespaceHosts, tmp_path: Path
) -> None:
    spec = ssh_spec(hosts, nodes=1, max_attempts=1)
    assert spec.ssh is not None
    two = spec.model_copy(update={"ssh": spec.ssh.model_copy(update={"hosts": spec.ssh.hosts[:2]})})
    searched = run_program(
        hosts.hosts[0].runs("tests.cluster.tiny_trials", str(tmp_path), two.model_dump_json()),
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=DEADLINE_S,
    )
    assert searched.returncode == 0, searched.stderr
    assert json.loads(searched.stdout.splitlines()[-1]) == [None] * 5
    events = list(read_events(tmp_path / LEDGER))
    attempts = [event for event in events if event["event"] in ("attempt.begin", "attempt")]
    going = list(accumulate(1 if event["event"] == "attempt.begin" else -1 for event in attempts))
    assert len(going) == 2 * 5 and max(going) == 2 and going[-1] == 0, "two at a time, and none begun twice"
    runs = list((tmp_path / "workspace" / "runs").iterdir())
    numbers = [(run, number) for run in runs for number in attempt_numbers(run / "attempts")]
    status = [AttemptFiles(attempt_folder(*each)).read_status(0) for each in numbers]
    assert {each.host for each in status if each is not None} == {host.name for host in hosts.hosts[1:3]}
    kept = sorted(sorted(path.name for path in (run / "checkpoints").glob("step-*")) for run in runs)
    assert [names[-1] for names in kept] == [f"step-{RUNG:08}"] + [f"step-{END:08}"] * 2
    assert len(kept[0]) == 1 and len(stages_of(Workspace(str(tmp_path / "workspace")))) == 2
