"""`headway windows`: when the windows of a pipeline open, what people decided, and when the next run will be done."""

from __future__ import annotations

import datetime
from itertools import takewhile
from typing import Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.config.windows import WindowsSpec
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.show.estimate import Estimate, estimate
from headway.flows.windows.admission import Pipeline
from headway.flows.windows.forecast import foresee
from headway.flows.windows.gate import deadline_of, local, utc
from headway.flows.windows.holds import shown_hold
from headway.flows.windows.openings import DAY, Opening, Timetable
from headway.flows.windows.schedules import Schedule, require_an_opening, schedules
from headway.tasks.ownership.pipeline_history import Hold, read


class CalendarEntry(BaseModel):
    opens: datetime.datetime
    """In the windows' zone, as `closes`."""
    closes: datetime.datetime
    opens_utc: datetime.datetime
    closes_utc: datetime.datetime
    length_s: float
    useful_s: float
    """Before the last checkpoint's margin."""
    is_open: bool
    is_too_short: bool
    has_a_start: bool
    """Whether a schedule starts it; what people opened, or a skip left over, it does not."""


class DecisionEntry(BaseModel):
    action: Literal["skip", "open"]
    start: datetime.datetime
    end: datetime.datetime
    why: str
    by: str
    decided_at: datetime.datetime


class NextRun(BaseModel):
    """What is foreseen of the run that starts at the next opening."""

    sentence: str
    finish: datetime.datetime | None = None
    num_openings: int | None = None
    fits: bool | None = None
    """Whether it finishes within the time asked for; None where nobody knows."""
    work_s: dict[str, float] = {}
    """Stages that would run, with what they took before."""
    step_s: float | None = None


class Calendar(BaseModel):
    pipeline: str
    time_zone: str
    now: datetime.datetime
    until: datetime.datetime
    margin_s: float
    min_useful_s: float
    priority: int
    openings: list[CalendarEntry]
    decisions: list[DecisionEntry]
    blackouts: list[str]
    schedules: list[Schedule]
    next_run: NextRun
    held: Hold | None = None
    """Who lets no retrain of it begin, windows or not; None: nobody."""
    cut: str = ""
    """The run that windows have cut, and how many: the next one resumes it. Empty where there is none."""


def make_calendar(pipeline: Pipeline, now: datetime.datetime, ahead: datetime.timedelta) -> Calendar:
    """From now on, a window that is open included.

    Raises:
        ConfigError: no window opens within a year.
        IntegrityError: a recorded decision is damaged.
    """
    timetable, spec = pipeline.timetable, pipeline.windows
    require_an_opening(timetable, now)
    until = now + ahead
    days = (now.astimezone(spec.zone).date(), until.astimezone(spec.zone).date())
    # By the windows alone: schedules know nothing of what people skip or open.
    starts = {each.start for each in Timetable(spec=spec).openings(now, until)}
    return Calendar(
        pipeline=pipeline.spec.pipeline,
        time_zone=spec.time_zone,
        now=now,
        until=until,
        margin_s=spec.margin_s,
        min_useful_s=spec.min_useful_s,
        priority=spec.priority,
        openings=[_entry(spec, each, now, starts) for each in timetable.openings(now, until)],
        decisions=[
            DecisionEntry(
                action=each.action,
                start=each.start.astimezone(spec.zone),
                end=each.end.astimezone(spec.zone),
                why=each.why,
                by=each.by,
                decided_at=each.decided_at,
            )
            for each in timetable.overrides
            if each.end > now and each.start < until
        ],
        blackouts=[str(each) for each in spec.blackouts if each.last >= days[0] - DAY and each.first <= days[1]],
        schedules=list(schedules(spec, now)),
        next_run=_next_run(pipeline, now, until),
        held=shown_hold(Workspace(pipeline.request.workspace), pipeline.spec.pipeline),
        cut=_cut(pipeline),
    )


def _cut(pipeline: Pipeline) -> str:
    now = read(Workspace(pipeline.request.workspace), pipeline.spec.pipeline)
    if now.windows_cut == 0:
        return ""
    next_one = " The next one finishes it on its own code and data, and then takes the newest." if now.run else ""
    return f"{'STARVING: ' if now.starving else ''}{now.cut}.{next_one}"


def _entry(
    spec: WindowsSpec, opening: Opening, now: datetime.datetime, starts: set[datetime.datetime]
) -> CalendarEntry:
    useful_s = max(0.0, (deadline_of(spec, opening) - opening.start).total_seconds())
    return CalendarEntry(
        opens=opening.start.astimezone(spec.zone),
        closes=opening.end.astimezone(spec.zone),
        opens_utc=opening.start,
        closes_utc=opening.end,
        length_s=opening.length_s,
        useful_s=useful_s,
        is_open=opening.holds(now),
        is_too_short=useful_s < spec.min_useful_s,
        has_a_start=opening.start in starts,
    )


def _next_run(pipeline: Pipeline, now: datetime.datetime, until: datetime.datetime) -> NextRun:
    try:
        expected = estimate(pipeline.request)
    except HeadwayError as error:
        return NextRun(sentence=f"When the next run will be done is not known: {error}")
    return predict(pipeline.timetable, expected, now, until)


def predict(timetable: Timetable, expected: Estimate, now: datetime.datetime, until: datetime.datetime) -> NextRun:
    """Lay the next run's work out over the openings of a year."""
    spec, work = timetable.spec, expected.work
    known = {each.stage: round(each.duration_s, 3) for each in work}
    if "launch" in expected.never_ran:
        return NextRun(
            sentence="When the next run will be done is not known before a first run; `headway plan` rehearses one.",
            work_s=known,
        )
    beside = f", besides {', '.join(expected.never_ran)}, which never ran here" if expected.never_ran else ""
    if not work:
        # Also where what never ran is all there is to do.
        what = f"It is not known how long {', '.join(expected.never_ran)} will take" if beside else "Nothing is to do"
        return NextRun(sentence=f"{what}: every stage that was measured is found, as things are now.")
    openings = list(timetable.following(now))
    found = foresee(spec, work, openings)
    given = list(takewhile(lambda each: each.start < until, openings))
    takes = f"The next run takes about {span(sum(each.duration_s for each in work))}{beside}"
    windows = count(found.num_openings, "window")
    if found.finish is None:
        cause = found.unfinished
        why = "" if cause is None or cause.can_be_cut else f": {cause.stage} needs {span(cause.duration_s)} in one go"
        sentence = f"{takes}. It cannot finish in any {windows} of the coming year{why}."
    elif found.finish > until:
        fitting = (
            "none opens" if not given else "the one that opens" if len(given) == 1 else f"the {len(given)} that open"
        )
        sentence = (
            f"{takes}. It cannot finish in the windows given ({fitting} until {local(spec, until)}): it needs "
            f"{windows}, and is done at about {local(spec, found.finish)}."
        )
    else:
        sentence = f"{takes}, in {windows}: done at about {local(spec, found.finish)} ({utc(found.finish)} in UTC)."
    return NextRun(
        sentence=sentence,
        finish=found.finish,
        num_openings=found.num_openings,
        fits=found.finish is not None and found.finish <= until,
        work_s=known,
        step_s=expected.step_s,
    )


def span(seconds: float) -> str:
    """A duration for a person: two units at most."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _note(entry: CalendarEntry) -> str:
    notes = {
        "open now": entry.is_open,
        "too short": entry.is_too_short,
        "no schedule starts it": not entry.has_a_start,
    }
    return ", ".join(note for note, applies in notes.items() if applies)


def shown_length(span: datetime.timedelta) -> str:
    """In whole days, or in hours where it is none."""
    unit, name = (DAY, "day") if span % DAY == datetime.timedelta() else (datetime.timedelta(hours=1), "hour")
    return f"{span / unit:g} {name}{'' if span == unit else 's'}"


def print_calendar(calendar: Calendar, console: Console | None = None) -> None:
    console = console or plain_console()
    far = shown_length(calendar.until - calendar.now)
    console.print(headed(calendar.pipeline, f"  {calendar.time_zone}, the next {far}"), end="\n\n")
    table = Table("opens", "closes", "in UTC", "length", "useful", "", box=None, padding=(0, 2))
    for each in calendar.openings:
        table.add_row(
            f"{each.opens:%a %Y-%m-%d %H:%M %z}",
            # A weekday alone names a day only within the week.
            f"{each.closes:%a %H:%M %z}" if each.closes - each.opens < 6 * DAY else f"{each.closes:%a %Y-%m-%d %H:%M}",
            f"{each.opens_utc:%a %H:%M} to {each.closes_utc:%a %H:%M}",
            span(each.length_s),
            f"{each.useful_s:,.0f} s",
            _note(each),
        )
    print_table(console, table)
    if not calendar.openings:
        console.print("  none opens")
    for decision in calendar.decisions:
        what = "skipped" if decision.action == "skip" else "opened"
        stretch = f"{decision.start:%a %Y-%m-%d %H:%M %z} to {decision.end:%a %Y-%m-%d %H:%M %z}"
        console.print(f"\n{what:<9} {stretch}")
        console.print(f"          by {decision.by}: {decision.why}")
    for blackout in calendar.blackouts:
        console.print(f"\nblackout  {blackout}")
    if calendar.held is not None:
        console.print(f"\nHELD      {calendar.held}")
    console.print(f"\n{calendar.next_run.sentence}")
    if calendar.cut:
        console.print(calendar.cut)
