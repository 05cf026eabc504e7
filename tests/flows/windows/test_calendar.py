"""`headway windows`: each opening on both clocks, what is useful of it, and when the next run will be done."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.console import plain_console
from headway.flows.show.calendar import make_calendar, print_calendar, span
from headway.flows.show.estimate import measured_step_s
from headway.flows.windows.moments import length
from headway.tasks.ownership.pipeline_history import PipelineEvent, ref_of
from headway.training.checkpoint.layout import run_folder

from .clocks import instant

DAY = datetime.timedelta(days=1)


def shown(calendar) -> list[str]:
    stream = io.StringIO()
    print_calendar(calendar, plain_console(stream, width=200))
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_each_opening_is_shown_on_both_clocks_with_its_length_over_a_change_of_the_clock(reopened) -> None:
    calendar = make_calendar(reopened(), instant("2026-10-24T10:00Z"), 2 * DAY)
    assert [each.length_s for each in calendar.openings] == [5 * 3600, 4 * 3600]
    assert [each.useful_s for each in calendar.openings] == [5 * 3600 - 300, 4 * 3600 - 300]
    lines = shown(calendar)
    assert "Sun 2026-10-25 01:00 +0200 Sun 05:00 +0100 Sat 23:00 to Sun 04:00 5 h 00 min 17,700 s" in lines
    assert "Mon 2026-10-26 01:00 +0100 Mon 05:00 +0100 Mon 00:00 to Mon 04:00 4 h 00 min 14,100 s" in lines


def test_an_open_window_says_so_and_blackouts_in_sight_are_listed(reopened) -> None:
    calendar = make_calendar(reopened(), instant("2026-12-23T02:00Z"), 5 * DAY)
    assert [f"{each.opens:%d}" for each in calendar.openings] == ["23", "27", "28"]
    assert [each.is_open for each in calendar.openings] == [True, False, False]
    lines = shown(calendar)
    assert "blackout 2026-12-24 to 2026-12-26 (nobody is there)" in lines
    assert sum(line.endswith("open now") for line in lines) == 1
    assert make_calendar(reopened(), instant("2026-11-23T12:00Z"), 5 * DAY).blackouts == []


def test_before_a_first_run_nobody_guesses_when_the_next_is_done(reopened) -> None:
    calendar = make_calendar(reopened(), instant("2026-11-23T12:00Z"), 2 * DAY)
    assert calendar.next_run.fits is None and "not known before a first run" in calendar.next_run.sentence
    assert shown(calendar)[-1] == calendar.next_run.sentence
    assert [each.cron for each in calendar.schedules] == ["0 1 * * *"]
    assert (
        json.loads(json.dumps(calendar.model_dump(mode="json")))["openings"][0]["opens_utc"] == "2026-11-24T00:00:00Z"
    )


def test_a_source_that_cannot_be_read_costs_the_forecast_and_not_the_calendar(reopened, project: Path) -> None:
    (project / "texts" / "one.txt").unlink()
    calendar = make_calendar(reopened(), instant("2026-11-23T12:00Z"), 2 * DAY)
    assert len(calendar.openings) == 2
    assert calendar.next_run.sentence.startswith("When the next run will be done is not known: ")


def keep_steps(workspace: Workspace, pipeline: str, attempt: str, start_unix_s: float, step_s: float) -> None:
    """What ranks leave of an attempt of ten steps, a tenth of their time spent waiting between them."""
    digest = sha256_bytes(pipeline.encode())
    nothing, link = workspace.publish("nothing", b""), Link(kind="manifest", sha256=digest)
    run = RunSpec(
        pipeline=pipeline, config={}, manifest=link, receipt=link, fitted=link, code=nothing, environment=nothing
    )
    folder = run_folder(workspace.publish_document(run))
    spool = workspace.local_path(f"{folder}/attempts/{attempt}/ledger/rank-0.jsonl")
    spool.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        {"event": "step", "step": n, "unix_s": start_unix_s + n * step_s, "duration_s": 0.9 * step_s} for n in range(10)
    ]
    spool.write_text("".join(json.dumps(step) + "\n" for step in steps))


def test_a_step_is_measured_from_the_newest_attempt_of_this_pipeline_and_no_other(project: Path) -> None:
    workspace = Workspace.create(str(project / "workspace"))
    assert measured_step_s(workspace, "tiny") is None
    keep_steps(workspace, "tiny", "001", 2_000.0, 0.5)
    keep_steps(workspace, "tiny", "000", 1_000.0, 7.0)
    keep_steps(workspace, "other", "001", 9_000.0, 3.0)
    assert measured_step_s(workspace, "tiny") == pytest.approx(0.5, rel=0.02)
    assert measured_step_s(workspace, "third") is None


def test_the_measured_steps_give_the_finish(reopened, project: Path) -> None:
    keep_steps(Workspace.create(str(project / "workspace")), "tiny", "001", 1_000.0, 60.0)
    calendar = make_calendar(reopened(), instant("2026-11-23T12:00Z"), DAY)
    # 500 steps of a minute are 8 h 20 min, and a night has 3 h 55 min: the third night's beginning.
    assert calendar.next_run.num_openings == 3 and calendar.next_run.fits is False
    assert "cannot finish in the windows given (the one that opens until" in calendar.next_run.sentence
    assert calendar.next_run.work_s["launch"] == pytest.approx(500 * 60, rel=0.02)


def test_windows_that_never_open_are_refused(reopened, project: Path) -> None:
    text = (project / "tiny.yaml").read_text().replace("last: 2026-12-26", "last: 2028-01-01")
    (project / "tiny.yaml").write_text(text)
    with pytest.raises(ConfigError, match="no window opens within a year"):
        make_calendar(reopened(), instant("2026-12-25T12:00Z"), 2 * DAY)


@pytest.mark.parametrize("text", ["", "14", "2 weeks", "0d", "400d", "-3d", "1h30m"])
def test_a_length_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Write 36h, 14d or 2w"):
        length(text, "--next")


def test_lengths_and_spans_are_in_units_that_people_use() -> None:
    assert (length("36h", ""), length("2w", "")) == (1.5 * DAY, 14 * DAY)
    assert [span(s) for s in (59.6, 119, 120, 3599, 3600, 90061)] == [
        *("60 s", "119 s", "2 min", "1 h 00 min", "1 h 00 min", "25 h 01 min")
    ]


def test_it_says_which_run_the_next_window_goes_on_with_and_that_it_starves(reopened) -> None:
    now, entry = instant("2026-11-23T12:00Z"), None
    workspace = Workspace(reopened().request.workspace)
    for cut, message in ((0, ""), (2, "2 windows in a row"), (5, "STARVING: 5 windows in a row")):
        run = PipelineEvent(pipeline="tiny", run="0" * 16, state="cut", windows_cut=cut, starving=cut == 5)
        entry = refs.move(workspace, ref_of("tiny"), workspace.publish_document(run), expected=entry, reason="cut")
        calendar = make_calendar(reopened(), now, 2 * DAY)
        assert calendar.cut.startswith(message) and (
            shown(calendar)[-1] == (calendar.cut or calendar.next_run.sentence)
        )
    assert "finishes it on its own code and data, and then takes the newest" in calendar.cut


def test_how_far_it_looks_is_told_in_hours_where_it_is_no_whole_number_of_days(reopened) -> None:
    for ahead, told in (("2h", "the next 2 hours"), ("36h", "the next 36 hours"), ("24h", "the next 1 day")):
        calendar = make_calendar(reopened(), instant("2026-12-23T02:00Z"), length(ahead, "--next"))
        assert told in shown(calendar)[0]
