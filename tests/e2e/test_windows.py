"""A run over several windows: one that closes by the clock, several that a step closes, and changes between them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.kept_accounts import all_accounts
from headway.flows.config.request import RetrainRequest
from headway.flows.show.decisions import open_until
from headway.flows.windows.admission import open_pipeline
from headway.tasks.ownership.pipeline_history import PipelineEvent, read, ref_of
from headway.training.observe.ledger import Event
from tests.e2e.in_prefect import failed_in_prefect
from tests.e2e.project import Project

pytestmark = pytest.mark.long

WINDOWS = """\
windows:
  time_zone: UTC
  open: [{days: [mon], start: "00:00", end: "00:01"}]
  margin_s: 5
  min_useful_s: 2
"""
CUTS = (3, 4, 9, 14, 20)
"""Steps after which a window closes; the last is the run's last."""


def steps(project: Project) -> list[Event]:
    return [e for attempt in project.attempts() for e in project.rank_events(attempt) if e["event"] == "step"]


def open_window(request: RetrainRequest, length: datetime.timedelta) -> tuple[float, float]:
    """From now on; when it opens and closes, in Unix seconds."""
    now = datetime.datetime.now(datetime.UTC)
    open_until(open_pipeline(request), now, until=(now + length).isoformat(), why="a test")
    return now.timestamp(), (now + length).timestamp()


def history(project: Project) -> list[tuple[str, str]]:
    """Which run the pipeline was at, and what became of it."""
    workspace = Workspace(str(project.workspace))
    entries = [workspace.load(entry.target, PipelineEvent) for entry in refs.history(workspace, ref_of("tiny"))]
    return [(entry.run, entry.event) for entry in entries]


def change_the_data(project: Project) -> None:
    path = project.root / "texts" / "part0" / "text00.txt"
    path.write_text(path.read_text() + "One more line, of today.\n")


def test_training_stops_inside_its_window_with_a_checkpoint_and_the_next_one_goes_on_though_data_changed(
    new_project: Project, prefect_here: None, forked_gangs: None
) -> None:
    from headway.flows.retrain_flow import retrain

    project = new_project
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 1000000")
    project.edit("tiny.yaml", "registry:", f"{WINDOWS}registry:")
    by_hand = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    in_window = by_hand.model_copy(update={"in_window": True})

    state = retrain(by_hand.model_copy(update={"stop_at_step": 1}), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Stopped"), state.message
    length, openings = datetime.timedelta(seconds=12), []
    while not openings or steps(project)[-1]["step"] == 1:  # windows in which a busy machine comes to no step
        assert length < datetime.timedelta(minutes=15), "it never comes to train"
        openings.append(open_window(by_hand, length))
        state = retrain(in_window, return_state=True)
        ends = {"WindowClosed"}
        if (last := steps(project)[-1]["step"]) == 1:
            ends |= {"WindowTooShort", "OutsideWindow"}
        assert state.type.value == "COMPLETED" and state.name in ends, state.message
        length *= 2
    for step in steps(project)[1:]:
        ends_unix_s = step["unix_s"] + step["duration_s"]
        assert any(opens < step["unix_s"] and ends_unix_s < closes for opens, closes in openings), step
    assert project.files(f"runs/*/checkpoints/*{last}/manifest.json")
    assert not any(Path(f"/proc/{project.rank_pid(rank)}").exists() for rank in (0, 1)), "nobody trains on"
    assert history(project)[-1][1] == "cut"
    assert failed_in_prefect(project) == [], "whoever yields has not failed"

    change_the_data(project)
    open_window(by_hand, datetime.timedelta(minutes=15))
    state = retrain(in_window.model_copy(update={"stop_at_step": last + 3}), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Stopped"), state.message
    assert [step["step"] for step in steps(project)] == list(range(1, last + 4)), "no step twice, and none left out"
    assert len(list((project.workspace / "runs").iterdir())) == 1, "the same run, on the data it began with"


@pytest.mark.long
def test_what_a_window_cut_is_finished_and_registered_before_the_newest_data_are_taken(
    new_project: Project, retrain_here: Callable[..., object], forked_gangs: None
) -> None:
    """Cut between its last step and its registration: nothing is left to train, so that newer data follow at once."""
    from headway.flows.retrain_flow import retrain

    project, workspace = new_project, Workspace(str(new_project.workspace))
    retrain_here(project)
    run = project.run_dir().name
    assert history(project) == [(run, "started"), (run, "finished")]
    first = read(workspace, "tiny").finished
    cut = read(workspace, "tiny").model_copy(update={"event": "cut", "state": "cut", "windows_cut": 1})
    newest = refs.current(workspace, ref_of("tiny"))
    refs.move(workspace, ref_of("tiny"), workspace.publish_document(cut), expected=newest, reason="cut")
    change_the_data(project)
    project.edit("tiny.yaml", "registry:", f"{WINDOWS}registry:")
    request = RetrainRequest(
        pipeline=str(project.pipeline), workspace=str(project.workspace), in_window=True, stop_at_step=2
    )
    open_window(request, datetime.timedelta(minutes=30))
    state = retrain(request, return_state=True)
    assert state.name == "Stopped", state.message
    latest = max(all_accounts(workspace), key=lambda account: account.begin_unix_s)
    assert latest.in_window and latest.window_outcome == "", "a bound of its own ended it"
    done, (newer, started), stopped = history(project)[-3:]
    assert done == (run, "finished") and started == "started" and stopped == (newer, "stopped")
    finished = read(workspace, "tiny").finished
    assert finished.finished_unix_s > first.finished_unix_s, "it is registered, whatever becomes of newer data"
    assert first.started_unix_s < finished.started_unix_s < first.finished_unix_s, "on data of then"
    assert newer != run and {path.name for path in (project.workspace / "runs").iterdir()} == {run, newer}


@pytest.mark.long
def test_after_each_of_five_windows_every_bit_is_the_uninterrupted_runs_whatever_changed_between_them(
    new_project: Project, forked_gangs: None
) -> None:
    """A step closes each window where a clock would."""
    project = new_project
    project.edit("tiny.yaml", "max_steps: 120", f"max_steps: {CUTS[-1]}")
    project.edit("tiny.yaml", "every_steps: 20", "every_steps: 1\n    keep_last: 50")
    train(project, None)
    undisturbed = {step: files_of(project, step) for step in CUTS}
    assert len({digests for files in undisturbed.values() for digests in files.items()}) > len(CUTS)
    project.forget_training()
    for number, last in enumerate(CUTS):
        train(project, last)
        assert files_of(project, last) == undisturbed[last], f"{number + 1} windows, {last} steps"
        if number == 1:
            change_the_data(project)
            project.edit("tiny.yaml", "lr: 0.02", "lr: 0.01")
    assert [step["step"] for step in steps(project)] == list(range(1, CUTS[-1] + 1))
    assert len({attempt.name for attempt in project.attempts()}) == len(CUTS), "a window, an attempt"


def files_of(project: Project, step: int) -> dict[str, bytes]:
    """Weights, optimizer state and all else that a checkpoint holds, but what it says of itself."""
    (folder,) = {path.parent for path in project.files(f"runs/*/checkpoints/*{step:08d}/manifest.json")}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def train(project: Project, last_step: int | None) -> None:
    """The flow up to training, as a window's start does it; None: to the end, from the newest data."""
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows.run.session import session
    from headway.tasks.ownership import current_run
    from headway.tasks.stages.launch import continue_run, launch
    from headway.tasks.stages.register import tracking_uri
    from headway.tasks.stages.shard import shard
    from headway.tasks.stages.snapshot import snapshot
    from headway.tasks.stages.validate import validate

    stages: dict[str, Any] = {"pipeline": str(project.pipeline), "workspace": str(project.workspace)}
    with contextlib.suppress(RunStopped), session(RetrainRequest(**stages, stop_at_step=last_step)) as (run, spec):
        uri = tracking_uri(run, spec.registry)
        cut = current_run.cut_run(run) if last_step is not None else None
        try:
            if cut is not None:
                continue_run.fn(run, spec.training, spec.launch, cut, uri)
            else:
                files = snapshot.fn(run, spec.contract, spec.source)
                receipt = validate.fn(run, spec.contract, spec.source, files)
                launch.fn(run, spec.training, spec.launch, shard.fn(run, spec.shards, spec.source, files, receipt), uri)
        except RunStopped as stopped:
            assert last_step != CUTS[-1], stopped
            raise RunStopped(stopped.what, reason="window closed") from stopped
        assert last_step in (None, CUTS[-1])
