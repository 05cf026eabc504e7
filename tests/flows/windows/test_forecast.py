"""Work laid out over windows: training is cut and goes on, what else is cut begins again."""

from __future__ import annotations

import datetime

from headway.flows.config.windows import WindowsSpec
from headway.flows.show.calendar import predict
from headway.flows.show.estimate import Estimate, from_plan
from headway.flows.show.plan import Plan
from headway.flows.windows.forecast import Forecast, Work, foresee
from headway.flows.windows.openings import Timetable
from headway.tasks.core.outlook import Outlook

from .clocks import instant, window, windows_spec

NOON = instant("2026-11-23T12:00Z")
DAY = datetime.timedelta(days=1)


def nights(**rest: object) -> WindowsSpec:
    """Ten usable minutes every night: 01:00 to 01:11, the last for the checkpoint."""
    return windows_spec("UTC", window("01:00", "01:11"), **{"margin_s": 60, **rest})


def forecast(*work: Work, days: int = 30, **rest: object) -> Forecast:
    spec = nights(**rest)
    return foresee(spec, work, Timetable(spec=spec).following(NOON, days * DAY))


def train(seconds: float) -> Work:
    return Work(stage="launch", duration_s=seconds, can_be_cut=True)


def stage(name: str, seconds: float) -> Work:
    return Work(stage=name, duration_s=seconds)


def test_what_fits_into_one_window_is_done_there() -> None:
    found = forecast(stage("shard", 100), train(300), stage("evaluate", 200))
    assert (found.finish, found.num_openings) == (instant("2026-11-24T01:10Z"), 1)


def test_training_goes_on_in_the_next_window() -> None:
    found = forecast(stage("shard", 100), train(1200), stage("evaluate", 100))
    assert (found.finish, found.num_openings) == (instant("2026-11-26T01:03:20Z"), 3)


def test_another_stage_that_does_not_fit_any_more_begins_again_in_the_next_window() -> None:
    found = forecast(train(550), stage("evaluate", 100))
    assert (found.finish, found.num_openings) == (instant("2026-11-25T01:01:40Z"), 2)


def test_a_stage_that_is_longer_than_every_window_never_ends() -> None:
    found = forecast(train(100), stage("evaluate", 601))
    assert found.finish is None and found.unfinished == stage("evaluate", 601)


def test_windows_under_the_least_useful_length_are_not_used() -> None:
    spec = windows_spec("UTC", window("01:00", "01:11", ["tue", "thu"]), window("01:00", "01:21", ["sat"]), margin_s=60)
    strict = spec.model_copy(update={"min_useful_s": 900.0})
    found = foresee(strict, [train(1000)], Timetable(spec=spec).following(NOON))
    assert (found.finish, found.num_openings) == (instant("2026-11-28T01:16:40Z"), 1)


def sentence(*work: Work, never_ran: tuple[str, ...] = (), days: int = 2) -> tuple[str, bool | None]:
    timetable = Timetable(spec=nights())
    found = predict(timetable, Estimate(list(work), list(never_ran), None), NOON, NOON + days * DAY)
    return found.sentence, found.fits


def test_the_sentence_says_when_and_in_how_many_windows() -> None:
    message, fits = sentence(train(1100))
    assert fits is True
    assert message == (
        "The next run takes about 18 min, in 2 windows: done at about 2026-11-25 01:08+00:00 (2026-11-25 01:08 in UTC)."
    )


def test_the_sentence_says_that_the_windows_given_are_too_few_and_how_many_it_needs() -> None:
    message, fits = sentence(train(3000))
    assert fits is False
    assert "cannot finish in the windows given (the 2 that open until 2026-11-25 12:00+00:00)" in message
    assert "it needs 5 windows, and is done at about 2026-11-28 01:10+00:00" in message


def test_the_sentence_names_the_stage_that_no_window_holds() -> None:
    message, fits = sentence(train(100), stage("evaluate", 7200))
    assert fits is False and "cannot finish in any" in message and "evaluate needs 2 h 00 min in one go" in message


def test_what_nobody_measured_is_said_not_guessed() -> None:
    message, fits = sentence(stage("shard", 3), never_ran=("launch", "verify"))
    assert fits is None and "not known before a first run" in message
    message, _ = sentence(train(100), never_ran=("evaluate", "register"))
    assert "besides evaluate, register, which never ran here" in message
    assert "found" in sentence()[0]


def plan(*stages: Outlook) -> Plan:
    return Plan(
        pipeline="tiny",
        workspace="/workspace",
        num_files=1,
        size_bytes=1,
        stages=list(stages),
        batch="",
        max_steps=1000,
        rates="",
        groups=[],
        start=None,
        rehearsal=None,
        rank_memory_bytes=None,
        expected_s=None,
    )


def test_training_is_estimated_by_its_remaining_steps_where_one_was_measured() -> None:
    shard = Outlook(stage="shard", state="found", detail="", expected_s=0.0)
    is_running = Outlook(stage="launch", state="resume", detail="", expected_s=None, from_step=400)
    verify = Outlook(stage="verify", state="run", detail="", expected_s=3.0)
    evaluate = Outlook(stage="evaluate", state="run", detail="", expected_s=None)
    found = from_plan(plan(shard, is_running, verify, evaluate), 0.5)
    assert found.work == [train(300.0), stage("verify", 3.0)]
    assert found.never_ran == ["evaluate"]
    assert from_plan(plan(is_running), None).never_ran == ["launch"]
