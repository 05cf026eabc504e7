"""The gate in place: the command's exit code, the flow run's state, and what a person by hand is told."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
from pathlib import Path
from typing import get_args

import pytest
from prefect import State

from headway.data_contracts.store.errors import (
    ConfigError,
    EnvironmentProblem,
    HeadwayError,
    OutsideWindow,
    RanksLost,
    RegistryError,
    RunStopped,
    TrainingFailed,
)
from headway.data_contracts.store.publication import Workspace
from headway.flows.cli.command_line import run
from headway.flows.config.request import RetrainRequest
from headway.flows.show.decisions import open_until, skip
from headway.flows.windows.admission import ENDED_BY_NAME, admit, enter, keeping_to_windows, remark
from headway.flows.windows.gate import Skip, SkipState
from headway.flows.windows.openings import Override, Timetable
from headway.tasks.core.stopped import raised_if_stopped
from headway.tasks.ownership.pipeline_history import append

from .clocks import instant

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def closed(reopened) -> None:
    """Whatever the time is while the test runs."""
    now = datetime.datetime.now(datetime.UTC)
    skip(reopened(), now - HOUR, until=(now + 24 * HOUR).isoformat(), skip_next=False, why="the cluster moves")


@pytest.fixture
def opened(reopened) -> datetime.datetime:
    """Until when: at noon, when no window of the pipeline's own goes on from there."""
    now = datetime.datetime.now(datetime.UTC)
    until = (now + 24 * HOUR).replace(hour=12, minute=0, second=0, microsecond=0)
    open_until(reopened(), now - HOUR, until=until.isoformat(), why="the model is on fire")
    return until


def kept(request: RetrainRequest) -> RetrainRequest:
    return request.model_copy(update={"in_window": True})


def headway(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headway", *arguments])
    return run()


def test_a_request_that_does_not_keep_to_windows_is_left_as_it_is(request_of: RetrainRequest) -> None:
    assert admit(request_of, instant("2026-11-24T12:00Z")) is request_of


def test_an_admitted_request_carries_the_windows_deadline_and_how_it_was_asked(request_of) -> None:
    admitted = admit(kept(request_of), instant("2026-11-24T01:00Z"))
    assert isinstance(admitted, RetrainRequest)
    assert admitted.stop_at == instant("2026-11-24T03:55Z") and admitted.stop_because == "window closed"
    assert admitted.command.endswith(" --in-window"), "what continues it keeps to windows as well"
    refused = admit(kept(request_of), instant("2026-11-24T12:00Z"))
    assert isinstance(refused, Skip) and refused.state == "OutsideWindow"


def test_of_a_persons_end_and_the_windows_the_earlier_one_counts(request_of) -> None:
    now, early, late = (instant(f"2026-11-24T0{hour}:00Z") for hour in (1, 2, 6))
    for requested, counts in ((early, (early, "requested")), (late, (instant("2026-11-24T03:55Z"), "window closed"))):
        admitted = admit(kept(request_of).model_copy(update={"stop_at": requested, "stop_because": "requested"}), now)
        assert isinstance(admitted, RetrainRequest)
        assert (admitted.stop_at, admitted.stop_because) == counts


def test_a_pipeline_without_windows_cannot_keep_to_them(project: Path) -> None:
    request = RetrainRequest(pipeline="plain.yaml", workspace=str(project / "workspace"), in_window=True)
    with pytest.raises(ConfigError, match="has no windows"):
        admit(request)
    assert remark(request.model_copy(update={"in_window": False})) == ""


def test_the_command_ends_with_77_and_says_why_and_when_the_next_window_opens(
    project: Path, closed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway(monkeypatch, "retrain", "tiny.yaml", "--in-window") == OutsideWindow.exit_code == 77
    message = capsys.readouterr().err
    assert "Skipped" in message and "the cluster moves" in message and "The next window opens at" in message
    assert "Traceback" not in message
    assert not (project / "workspace" / "stages").exists(), "nothing was done"


def test_by_hand_a_person_is_told_outside_of_the_windows_and_goes_on(
    request_of: RetrainRequest, closed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(request_of) is request_of
    assert "does not wait for its windows" in capsys.readouterr().err


def test_by_hand_a_person_in_a_window_is_told_nothing(
    request_of: RetrainRequest, opened: datetime.datetime, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(request_of) is request_of
    # Other threads of this process may have their say there, too.
    assert "headway:" not in capsys.readouterr().err
    admitted = enter(kept(request_of))
    assert admitted.stop_at == opened - datetime.timedelta(seconds=300)


def test_skips_and_the_calendar_by_command(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert headway(monkeypatch, "skip-window", "tiny.yaml", "--next", "--why", "the cluster moves") == 0
    assert headway(monkeypatch, "windows", "tiny.yaml", "--next", "4d") == 0
    message = capsys.readouterr().out
    assert "Skipped: " in message and "skipped" in message and "the cluster moves" in message
    assert headway(monkeypatch, "unskip-window", "tiny.yaml", "--why", "it does not") == 0
    until = (datetime.datetime.now(datetime.UTC) + 24 * HOUR).isoformat()
    assert headway(monkeypatch, "open-window", "tiny.yaml", "--until", until, "--why", "today") == 0
    assert headway(monkeypatch, "windows", "tiny.yaml", "--next", "4d", "--json") == 0
    assert '"is_open": true' in capsys.readouterr().out
    assert headway(monkeypatch, "windows", "plain.yaml") == 2
    assert "has no windows" in capsys.readouterr().err
    assert len(Workspace(os.environ["HEADWAY_WORKSPACE"]).names("refs/pipelines/tiny")) == 3


def ended_by(error: HeadwayError, request: RetrainRequest) -> State[None]:
    """How a flow run ends whose training stops so."""

    @keeping_to_windows
    def flow(_: RetrainRequest) -> None:
        raise error

    state = flow(request)
    assert isinstance(state, State)
    return state


def test_a_flow_run_that_was_stopped_completes_by_name_and_says_what_goes_on(request_of: RetrainRequest) -> None:
    """Where a window closed it does so by that name; where somebody's own bound came first, or a person, by another."""
    stopped = RunStopped("stopped at step 3 of 9.", advice="`headway retrain tiny` continues it.")
    state = ended_by(stopped, request_of.model_copy(update={"stop_at_step": 3}))
    assert (state.type.value, state.name, state.message) == ("COMPLETED", "Stopped", str(stopped))
    over = RunStopped("stopped.", reason="window closed")
    assert ended_by(over, request_of).name == "Stopped", "its own `stop_at`: no window of the pipeline's"


@pytest.mark.parametrize(
    "error", [EnvironmentProblem("no space left."), RanksLost("rank 1 vanished."), RegistryError("away.")]
)
def test_a_flow_run_that_failed_for_want_of_machines_says_so_by_name_and_with_its_error(
    request_of: RetrainRequest, error: HeadwayError
) -> None:
    state = ended_by(error, request_of)
    assert (state.type.value, state.name, state.message) == ("FAILED", "Infrastructure", str(error))
    with pytest.raises(type(error)):
        state.result()
    with pytest.raises(TrainingFailed):
        ended_by(TrainingFailed("the loss is not finite."), request_of)


def test_a_flow_run_whose_window_closes_completes_as_window_closed_and_as_starving_after_too_many(
    request_of: RetrainRequest, opened: datetime.datetime
) -> None:
    closed, workspace = RunStopped("stopped.", reason="window closed"), Workspace(request_of.workspace)
    assert ended_by(closed, kept(request_of)).name == "WindowClosed"
    starved = {"event": "cut", "state": "cut", "windows_cut": 5, "starving": True}
    append(workspace, "tiny", lambda before: before.model_copy(update=starved))
    state = ended_by(closed, kept(request_of))
    assert (state.type.value, state.name) == ("COMPLETED", "Starving")
    assert "`headway windows` says what it needs" in (state.message or "")
    assert {
        "Stopped",
        "WindowClosed",
        "CostBoundReached",
        "Starving",
        "Held",
        "Infrastructure",
        *get_args(SkipState),
    } == set(ENDED_BY_NAME)


def test_windows_that_end_before_a_start_comes_count_and_those_that_a_person_skips_do_not(
    request_of: RetrainRequest, reopened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is late every night lets a pipeline starve as well."""

    @keeping_to_windows
    def flow(_: RetrainRequest) -> None:
        raise AssertionError("let through")

    def due(at: str) -> State[None]:
        monkeypatch.setattr("headway.flows.windows.admission.scheduled_start", lambda: instant(at))
        state = flow(kept(request_of))
        assert isinstance(state, State) and state.type.value == "COMPLETED"
        return state

    now = datetime.datetime.now(datetime.UTC)
    skip(reopened(), now - HOUR, until=(now + HOUR).isoformat(), skip_next=False, why="the cluster moves")
    assert {due("2026-11-20T00:00Z").name for _ in range(6)} == {"Skipped"}
    opening = now - HOUR, now + 2 * HOUR
    spec = reopened().windows.model_copy(update={"margin_s": 24.0 * 3600})
    override = Override(action="open", start=opening[0], end=opening[1], why="", by="", decided_at=now)
    pipeline = dataclasses.replace(reopened(), windows=spec, timetable=Timetable(spec=spec, overrides=[override]))
    monkeypatch.setattr("headway.flows.windows.admission.open_pipeline", lambda _: pipeline)
    assert [due("2026-11-20T00:00Z").name for _ in range(5)] == ["WindowTooShort"] * 4 + ["Starving"]
    assert "6 windows in a row closed before training began. WindowTooShort: " in (
        due("2026-11-20T00:00Z").message or ""
    )


def test_a_command_that_entered_is_not_asked_again_and_its_stop_is_its_exit_code(
    request_of: RetrainRequest, opened: datetime.datetime
) -> None:
    requested: list[RetrainRequest] = []

    @keeping_to_windows
    def flow(request: RetrainRequest) -> None:
        requested.append(request)
        raise RunStopped("stopped.", reason="window closed")

    entered = enter(kept(request_of))
    state = flow(entered)
    assert isinstance(state, State) and (state.type.value, state.name) == ("COMPLETED", "WindowClosed")
    with pytest.raises(RunStopped, match="stopped"):
        raised_if_stopped(state.data)
    assert requested == [entered]


@pytest.mark.long
@pytest.mark.process
def test_a_flow_run_outside_its_windows_completes_under_the_reasons_name(
    request_of: RetrainRequest, closed: None, prefect_here: None, project: Path
) -> None:
    from headway.flows.retrain_flow import retrain

    state = retrain(kept(request_of), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Skipped")
    assert "the cluster moves" in (state.message or "")
    assert not (project / "workspace" / "ledger").exists(), "nothing was done"
