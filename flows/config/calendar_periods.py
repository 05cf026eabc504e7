"""Weeks, months and quarters of the calendar. Pure."""

from __future__ import annotations

import datetime
from typing import Literal

Period = Literal["week", "month", "quarter"]
MONTHS: dict[Period, int] = {"month": 1, "quarter": 3}


def bounds_of(period: Period, day: datetime.date) -> tuple[datetime.date, datetime.date]:
    """First day of the period that holds this day, and the first one after it."""
    if period == "week":
        begin = day - datetime.timedelta(days=day.weekday())
        return begin, begin + datetime.timedelta(days=7)
    months = MONTHS[period]
    begin = day.replace(month=(day.month - 1) // months * months + 1, day=1)
    number = begin.month - 1 + months
    return begin, begin.replace(year=begin.year + number // 12, month=number % 12 + 1)
