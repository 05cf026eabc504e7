"""`headway skip-window`, `unskip-window` and `open-window`: what a person decides, put on record."""

from __future__ import annotations

import datetime

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.windows.admission import Pipeline
from headway.flows.windows.gate import local, opens_next
from headway.flows.windows.moments import MAX_LOOK_AHEAD, moment
from headway.flows.windows.openings import Timetable
from headway.flows.windows.overrides import read_overrides, record_override, withdraw_overrides

NOT_STOPPED = "A running retrain keeps its deadline; `headway stop` ends it."


def skip(pipeline: Pipeline, now: datetime.datetime, *, until: str, skip_next: bool, why: str) -> str:
    """No training until a moment, or in the opening that comes next.

    Raises:
        ConfigError: neither or both given, a moment that is past or over a year ahead, no reason, or no window to skip.
    """
    _require_reason(why)
    if bool(until) == skip_next:
        raise ConfigError("which windows?", where="skip-window", advice="Give --next, or --until with a date or time.")
    if skip_next:
        coming = pipeline.timetable.next_opening(now)
        if coming is None:
            raise ConfigError("no window opens within a year.", where="--next")
        start, end = coming.start, coming.end
    else:
        start, end = now, _until(pipeline, until, now)
    record_override(*_pipeline(pipeline), "skip", start, end, why=why.strip())
    stretch = f"{local(pipeline.windows, start)} to {local(pipeline.windows, end)}"
    return f"Skipped: {stretch}. {_outlook(pipeline, now)} {NOT_STOPPED}"


def unskip(pipeline: Pipeline, now: datetime.datetime, *, why: str) -> str:
    """Back to the windows: every decision ends now.

    Raises:
        ConfigError: no reason, or nothing that was decided is in force or to come.
    """
    _require_reason(why)
    ended = [each for each in pipeline.timetable.overrides if each.end > now]
    if not ended:
        raise ConfigError("nothing is skipped or opened from now on.", where=pipeline.spec.pipeline)
    withdraw_overrides(*_pipeline(pipeline), now, why=why.strip())
    number = "one decision" if len(ended) == 1 else f"{len(ended)} decisions"
    return f"Ended {number}: the windows count again. {_outlook(pipeline, now)}"


def open_until(pipeline: Pipeline, now: datetime.datetime, *, until: str, why: str) -> str:
    """Training may happen from now until a moment, whatever windows, blackouts and skips say.

    Raises:
        ConfigError: a moment that is past or over a year ahead, or no reason.
    """
    _require_reason(why)
    end = _until(pipeline, until, now)
    record_override(*_pipeline(pipeline), "open", now, end, why=why.strip())
    return (
        f"Open until {local(pipeline.windows, end)}. No schedule starts there: "
        f"`headway retrain {pipeline.request.pipeline} --in-window` does, and stops in time."
    )


def _require_reason(why: str) -> None:
    if not why.strip():
        raise ConfigError("a decision needs its reason.", where="--why", advice="It is shown to who is on call.")


def _until(pipeline: Pipeline, until: str, now: datetime.datetime) -> datetime.datetime:
    end = moment(until, pipeline.windows.zone, "--until")
    if end <= now:
        raise ConfigError(f"{local(pipeline.windows, end)} is past.", where="--until")
    if end - now > MAX_LOOK_AHEAD:
        # Every look at the windows lays out all days of a decision, and what was decided for ever is soon forgotten.
        raise ConfigError(
            f"{until} is more than a year ahead.", where="--until", advice="Decide anew in a year at most."
        )
    return end


def _pipeline(pipeline: Pipeline) -> tuple[Workspace, str]:
    return Workspace.create(pipeline.request.workspace), pipeline.spec.pipeline


def _outlook(pipeline: Pipeline, now: datetime.datetime) -> str:
    """What the windows are now, the decision just recorded included."""
    overrides = read_overrides(Workspace(pipeline.request.workspace), pipeline.spec.pipeline)
    timetable = Timetable(spec=pipeline.windows, overrides=overrides)
    return opens_next(pipeline.windows, timetable.next_opening(now))
