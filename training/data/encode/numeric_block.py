"""What stands in a table's block of numbers: columns of numbers, and then the parts of each date or time.

Without Arrow, for whoever asks for a shape alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headway.training.data.encode.table_statistics import TableStatistics, TimeStatistics

MINUTE_US: Final = 60_000_000
DAY_US: Final = 86_400_000_000


class Cycle(NamedTuple):
    length_us: int
    num_places: int
    """Into which it is divided: a moment is at one of them."""


CYCLES: Final = {"day": Cycle(DAY_US, 1440), "week": Cycle(7 * DAY_US, 7), "year": Cycle(366 * DAY_US, 366)}
"""By minute, by weekday, by day of the year."""
MOST_PARTS: Final = 1 + 2 * len(CYCLES)
"""Of a column of times."""


def part_names(statistics: TimeStatistics) -> list[str]:
    """What the parts of a column of times are called, in their order.

    Args:
        statistics: what was fitted to the column.
    """
    name = statistics.column
    circles = (f"{name}: {cycle}, {part}" for cycle in statistics.cycles for part in ("sine", "cosine"))
    return [f"{name}: elapsed", *circles]


def numeric_names(statistics: TableStatistics) -> tuple[str, ...]:
    """What the block's columns are called, in their order.

    Args:
        statistics: what the encoder was fitted.
    """
    parts = (name for column in statistics.times for name in part_names(column))
    return (*(column.column for column in statistics.numeric), *parts)
