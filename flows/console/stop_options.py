"""When a retrain is to end, as people and schedulers write it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from headway.data_contracts.store.errors import ConfigError, StopReason

AFTER = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


class StopTime(NamedTuple):
    at: datetime
    """With its time zone."""
    because: StopReason


def stop_time(at: str, after: str, started_unix_s: float) -> StopTime | None:
    """The earlier of two bounds, or None where neither is given.

    Args:
        at: ISO 8601 with an offset; empty: none.
        after: days, hours, minutes, seconds, such as `1h30m`; empty: none.
        started_unix_s: what `after` counts from.

    Raises:
        ConfigError: not such a time; says what would do.
    """
    given = [
        *([StopTime(_moment(at), "window closed")] if at else ()),
        *(
            [StopTime(datetime.fromtimestamp(started_unix_s, UTC) + duration(after, "--stop-after"), "budget spent")]
            if after
            else ()
        ),
    ]
    return min(given, default=None)


def stop_fields(at: str, after: str, started_unix_s: float) -> dict[str, Any]:
    """Of a request, by when it ends and why; empty where no time is given. Arguments and errors as `stop_time`."""
    stop = stop_time(at, after, started_unix_s)
    return {} if stop is None else {"stop_at": stop.at, "stop_because": stop.because}


def _moment(text: str) -> datetime:
    where, example = "--stop-at", "Write it such as 2030-01-31T06:00+01:00 or 2030-01-31T05:00Z."
    try:
        moment = datetime.fromisoformat(text)
        # In here, since a time at the calendar's ends has none in UTC.
        in_utc = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{text!r} is no ISO 8601 time.", where=where, advice=example) from error
    if moment.tzinfo is None:
        local = moment.astimezone().isoformat(timespec="minutes")
        raise ConfigError(f"{text!r} names no time zone.", where=where, advice=f"In this machine's zone it is {local}.")
    return in_utc


def duration(text: str, where: str) -> timedelta:
    """A length of time as people write it.

    Raises:
        ConfigError: it is none; says what would do.
    """
    found = AFTER.fullmatch(text.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    try:
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        length = timedelta()
    if not timedelta() < length <= timedelta(days=3650):
        advice = "Write it such as 90s, 30m, 1h30m or 2d; ten years at most."
        raise ConfigError(f"{text!r} is no length of time.", where=where, advice=advice)
    return length
