"""A real window that closes while a run trains: the run yields with a checkpoint, and the next window goes on."""

from __future__ import annotations

import datetime

import pytest

from data_contracts.errors import RunStopped
from flows.request import RetrainRequest
from flows.windows.admission import open_pipeline
from flows.windows.decisions import open_until
from training.ledger import Event

pytestmark = pytest.mark.slow

WINDOWS = """\
windows:
  time_zone: UTC
  open: [{days: [mon], start: "00:00", end: "00:01"}]
  margin_s: 15
  min_useful_s: 5
"""


def steps(project) -> list[Event]:
    return [e for attempt in project.attempts() for e in project.rank_events(attempt) if e["event"] == "step"]


def test_training_stops_inside_its_window_with_a_checkpoint_and_the_next_one_goes_on(new_project, prefect_here) -> None:
    from flows.retrain import retrain

    project = new_project
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 1000000")
    project.edit("tiny.yaml", "registry:", f"{WINDOWS}registry:")
    by_hand = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    in_window = by_hand.model_copy(update={"in_window": True})

    def open_window(length: datetime.timedelta) -> datetime.datetime:
        now = datetime.datetime.now(datetime.UTC)
        open_until(open_pipeline(by_hand), now, until=(now + length).isoformat(), why="a test")
        return now + length

    with pytest.raises(RunStopped):
        retrain(by_hand.model_copy(update={"stop_at_step": 1}))
    length, last = datetime.timedelta(seconds=40), 1
    while last == 1:  # windows in which a busy machine comes to no step are windows as well
        assert length < datetime.timedelta(minutes=15), "it never comes to train"
        closes = open_window(length)
        state = retrain(in_window, return_state=True)
        ends = {"WindowClosed"} if (last := steps(project)[-1]["step"]) > 1 else {"WindowClosed", "WindowTooShort"}
        assert state.type.value == "COMPLETED" and state.name in ends, state.message
        length *= 2
    in_windows = steps(project)
    assert in_windows[-1]["unix_s"] + in_windows[-1]["duration_s"] < closes.timestamp()
    assert project.files(f"runs/*/checkpoints/*{last}/manifest.json")
    assert not project.living()

    open_window(datetime.timedelta(minutes=15))
    with pytest.raises(RunStopped):
        retrain(in_window.model_copy(update={"stop_at_step": last + 3}))
    assert [step["step"] for step in steps(project)] == list(range(1, last + 4)), "no step twice, and none left out"
    assert len(list((project.workspace / "runs").iterdir())) == 1, "the same run"
