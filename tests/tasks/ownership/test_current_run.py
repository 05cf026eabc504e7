"""The run that a pipeline is at: what a window cut is carried on, what failed for good is not, and starving shows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import (
    CostBoundReached,
    EnvironmentProblem,
    RanksLost,
    RunStopped,
    TrainingFailed,
)
from headway.tasks.core.context import CurrentWork, RunContext
from headway.tasks.ownership import current_run
from headway.tasks.ownership.pipeline_history import PipelineEvent, read, ref_of
from headway.training.checkpoint.layout import run_folder
from headway.training.observe.ledger import Event
from tests.tasks.conftest import MODEL, NOWHERE, link

CLOSED = RunStopped("the window closes.", reason="window closed")


@pytest.fixture
def described(context: RunContext) -> Callable[[str], Link]:
    """A run's document, by what it was made from."""

    def publish(digit: str) -> Link:
        links = {"receipt": link("contract-receipt"), "fitted": link("fitted-state")}
        manifest = link("shard-manifest", digit)
        run = RunSpec(pipeline=MODEL, config={}, manifest=manifest, code=NOWHERE, environment=NOWHERE, **links)
        return context.workspace.publish_document(run)

    return publish


def end(context: RunContext, error: BaseException, starving_after: int | None = None) -> None:
    with (
        pytest.raises(type(error)),
        current_run.recording_the_end(context, starving_after),
        current_run.abandoning_on_failure(context),
    ):
        raise error


def now(context: RunContext) -> PipelineEvent:
    return read(context.workspace, MODEL)


def test_what_a_window_cut_is_carried_on_until_it_is_finished(context: RunContext, described) -> None:
    assert current_run.cut_run(context) is None
    run = described("1")
    current_run.start(context, run.sha256)
    for windows in (1, 2):
        end(context, CLOSED)
        assert (current_run.cut_run(context), now(context).windows_cut) == (run, windows)
    current_run.finish(context, 0.0)
    assert current_run.cut_run(context) is None and now(context).windows_cut == 0


def test_a_run_was_begun_before_all_windows_that_cut_it(context: RunContext, described) -> None:
    run, newer = described("1"), described("2")
    assert current_run.started_at(context, run) == 0.0
    current_run.start(context, run.sha256)
    started_unix_s = current_run.started_at(context, run)
    assert time.time() - 60 < started_unix_s <= time.time()
    for _ in range(2):
        end(context, CLOSED)
        current_run.start(context, run.sha256)
    assert current_run.started_at(context, run) == started_unix_s
    current_run.start(context, newer.sha256)
    assert current_run.started_at(context, newer) > started_unix_s
    assert current_run.started_at(context, run) == 0.0, "of one that is not current nobody asks"


def test_a_run_that_a_crash_left_is_carried_on(context: RunContext, described) -> None:
    run = described("1")
    current_run.start(context, run.sha256)
    assert current_run.cut_run(context) == run
    end(context, EnvironmentProblem("the disk is full."))
    assert current_run.cut_run(context) == run, "what may go well another time is not given up"
    with pytest.raises(RanksLost), current_run.abandoning_on_failure(context):
        raise RanksLost("rank 1 was killed.")
    assert current_run.cut_run(context) == run, "nor what lost its ranks"


@pytest.mark.parametrize(
    "error", [TrainingFailed("not a number."), RunStopped("by hand."), RunStopped("x", reason="budget spent")]
)
def test_what_failed_for_good_or_a_person_stopped_is_not_carried_on(context: RunContext, described, error) -> None:
    run = described("1")
    current_run.start(context, run.sha256)
    end(context, CLOSED)
    end(context, error)
    assert current_run.cut_run(context) is None
    current_run.start(context, run.sha256)
    assert current_run.cut_run(context) == run, "asked for again, it is at work again"


def test_what_has_cost_what_it_may_is_carried_on_before_newer_data_and_is_no_lost_window(
    context: RunContext, described
) -> None:
    run = described("1")
    current_run.start(context, run.sha256)
    end(context, CostBoundReached("x", reason="cost bound reached"))
    assert current_run.cut_run(context) == run
    now = read(context.workspace, context.pipeline)
    assert (now.state, now.windows_cut) == ("bounded", 0)
    current_run.start(context, run.sha256)
    assert read(context.workspace, context.pipeline).state == "started"


def test_a_retrain_by_hand_of_newer_data_is_what_windows_go_on_with(context: RunContext, described) -> None:
    current_run.start(context, described("1").sha256)
    end(context, CLOSED)
    newer = described("2")
    current_run.start(context, newer.sha256)
    assert current_run.cut_run(context) == newer


def test_a_window_that_ends_before_training_carries_on_nothing_that_a_person_stopped(context, described) -> None:
    current_run.start(context, described("1").sha256)
    end(context, RunStopped("by hand."))
    end(context, CLOSED)
    assert current_run.cut_run(context) is None and now(context).windows_cut == 1
    assert current_run.record_missed_window(context.workspace, MODEL, starving_after=2).starving
    current_run.start(context, described("1").sha256)
    current_run.finish(context, 0.0)
    assert now(context).windows_cut == 0


def test_what_was_cleaned_away_is_not_carried_on(context: RunContext) -> None:
    current_run.start(context, "f" * 64)
    assert current_run.cut_run(context) is None


def test_window_after_window_without_a_finished_run_is_starving_and_a_finished_one_ends_it(
    context: RunContext, described
) -> None:
    heard: list[Event] = []
    context.ledger.listeners.append(heard.append)
    end(context, CLOSED, starving_after=3)
    assert now(context).cut == "one window closed before training began"
    for digit in "12":
        current_run.start(context, described(digit).sha256)
        end(context, CLOSED, starving_after=3)
    assert now(context).starving and now(context).windows_cut == 3
    assert [event["event"] for event in heard] == ["pipeline.starving"]
    assert now(context).cut in heard[0]["message"] and "3 windows in a row closed before run" in heard[0]["message"]
    current_run.finish(context, 0.0)
    assert not now(context).starving


def test_what_is_found_again_begins_nothing_and_is_one_more_finished_retrain(context: RunContext, described) -> None:
    run = described("1")
    for _ in range(2):
        current_run.start(context, run.sha256)
        current_run.finish(context, 0.0)
        assert (now(context).run, now(context).state) == (run.sha256[:16], "finished")
    told = [
        context.workspace.load(entry.target, PipelineEvent) for entry in refs.history(context.workspace, ref_of(MODEL))
    ]
    assert [each.event for each in told] == ["started", "finished", "finished"]


def test_the_first_error_is_told_though_it_cannot_be_recorded(context: RunContext, described) -> None:
    current_run.start(context, described("1").sha256)
    entry = context.workspace.local_path(f"refs/{ref_of(MODEL)}/00000001.json")
    entry.write_bytes(b"{")
    with pytest.raises(TrainingFailed, match="not a number") as failed, current_run.abandoning_on_failure(context):
        raise TrainingFailed("not a number.")
    assert "Nor could it be recorded" in failed.value.__notes__[0]


def test_a_run_that_another_retrain_overtook_says_nothing_of_the_others(context: RunContext, described) -> None:
    """Each flow run has a context of its own."""
    current_run.start(context, described("1").sha256)
    by_hand = dataclasses.replace(context, at=CurrentWork())
    newer = described("2")
    current_run.start(by_hand, newer.sha256)
    for error in (CLOSED, TrainingFailed("not a number."), RunStopped("by hand.")):
        end(context, error, starving_after=1)
        assert current_run.cut_run(context) == newer and now(context).windows_cut == 0
    current_run.finish(context, 0.0)
    assert current_run.cut_run(context) == newer
    current_run.finish(by_hand, 0.0)
    assert current_run.cut_run(context) is None


def test_steps_that_are_not_gone_on_from_are_told_with_the_command_that_does(context: RunContext, described) -> None:
    first, second = described("1"), described("2")
    other = context.workspace.load(second, RunSpec)
    assert current_run.not_continued(context, other) == ""
    current_run.start(context, first.sha256)
    assert current_run.not_continued(context, other) == "", "it has made no checkpoint"
    context.workspace.publish(f"{run_folder(first)}/checkpoints/00000007/manifest.json", b"{}")
    told = current_run.not_continued(context, other)
    assert "for its data changed since" in told and f"`headway resume {first.sha256[:16]}`" in told
    assert current_run.not_continued(context, context.workspace.load(first, RunSpec)) == "", "it is gone on with"
    current_run.finish(context, 0.0)
    assert current_run.not_continued(context, other) == "", "nothing is left of it to do"
