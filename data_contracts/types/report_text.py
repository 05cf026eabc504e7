"""How reports and drafts write counts, sizes, moments, and names that came from outside."""

from __future__ import annotations

import datetime


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.6g}"


def figure(number: float) -> str:
    """What an evaluation measured, short enough for a table: squares of prices have ten digits before the point."""
    size = abs(number)
    if size < 1000:
        return f"{number:.4f}"
    return f"{number:,.1f}" if size < 1e5 else f"{number:,.0f}" if size < 1e9 else f"{number:.4g}"


def size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} TB"


def length(seconds: float) -> str:
    """Such as 42 s, 3 min 10 s, 2 h 5 min."""
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(unix_s: float | None) -> str:
    """A time in UTC, to the second; years that Python's calendar lacks stay seconds."""
    if unix_s is None:
        return "none"
    try:
        found = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{unix_s} s since 1970"
    return found.strftime("%Y-%m-%d %H:%M:%S").removesuffix(" 00:00:00")
