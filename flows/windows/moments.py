"""Moments and lengths of time as people write them, in the windows' zone."""

from __future__ import annotations

import datetime
import re
from zoneinfo import ZoneInfo

from headway.data_contracts.store.errors import ConfigError
from headway.flows.windows.openings import UTC, first_shown

_LENGTH = re.compile(r"(\d{1,5})([hdw])")
_UNITS = {"h": datetime.timedelta(hours=1), "d": datetime.timedelta(days=1), "w": datetime.timedelta(weeks=1)}
MAX_LOOK_AHEAD = datetime.timedelta(days=366)


def length(text: str, where: str) -> datetime.timedelta:
    """Such as 36h, 14d or 2w; a year at most.

    Raises:
        ConfigError: not such a length.
    """
    match = _LENGTH.fullmatch(text.strip())
    found = int(match[1]) * _UNITS[match[2]] if match else datetime.timedelta()
    if not datetime.timedelta() < found <= MAX_LOOK_AHEAD:
        raise ConfigError(
            f"{text!r} is no length of time.", where=where, advice="Write 36h, 14d or 2w; a year at most."
        )
    return found


def moment(text: str, zone: ZoneInfo, where: str) -> datetime.datetime:
    """An ISO 8601 date or time; without an offset the first time that the zone's clock shows it.

    Raises:
        ConfigError: not such a time.
    """
    try:
        found = datetime.datetime.fromisoformat(text.strip())
        instant = first_shown(found, zone) if found.tzinfo is None else found.astimezone(UTC)
        instant.astimezone(zone)  # raises where a calendar ends: what the zone's clock cannot show is no time
        return instant
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{text!r} is no date or time.",
            where=where,
            advice=f"Write 2030-01-31, 2030-01-31T06:00 (on the clock of {zone.key}) or 2030-01-31T06:00+01:00.",
        ) from error
