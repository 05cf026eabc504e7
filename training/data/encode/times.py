"""Dates and times as numbers for a model: how far through the training rows, and where in the day, week and year.

Every part lies between -1 and 1, whatever the row. A moment before the first of training counts as the first, and one
after the last as the last: what a model makes of numbers that it never saw is nobody's forecast. Where a moment is
missing each part is 0, which says neither early nor late, and no hour, weekday or season.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import DataError
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.numeric_block import CYCLES, DAY_US, MINUTE_US, part_names
from headway.training.data.encode.source_columns import column_of, other_than_fitted, plain, refuse_rows
from headway.training.data.encode.table_statistics import TimeStatistics

WITH_ZONE, WITHOUT_ZONE = "times with a zone", "dates, or times without a zone"


class Instants(NamedTuple):
    us: NDArray[np.int64]
    """Microseconds since 1970 began: in UTC of a column with a zone, and by its own clock of one without."""
    is_there: NDArray[np.bool_]
    is_zoned: bool


def instants(block: SourceBlock, name: str, *, may_be_missing: bool, is_zoned: bool | None = None) -> Instants:
    """The column's moments; 0 where one is missing.

    Args:
        is_zoned: as the column was fitted; None while nothing is.

    Raises:
        DataError: neither dates nor times, or a null where none may be; a zone where none was fitted, or the other way
            round; beyond the 290,000 years that microseconds count.
    """
    fitted = "" if is_zoned is None else WITH_ZONE if is_zoned else WITHOUT_ZONE
    column = plain(column_of(block.batch, name, block.path, fitted=fitted))
    if not (types.is_timestamp(column.type) or types.is_date(column.type)):
        if fitted:
            raise other_than_fitted(block, name, column.type, fitted)
        raise DataError(f"column {name!r} is {column.type}, neither a date nor a time.", where=block.path)
    zoned = types.is_timestamp(column.type) and column.type.tz is not None
    if is_zoned is not None and zoned != is_zoned:
        # Noon by whose clock? An hour would be another than in training, and nobody would see it.
        raise other_than_fitted(block, name, column.type, fitted)
    is_there: NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if not may_be_missing:
        refuse_rows(block, ~is_there, name, "is null")
    wanted = pa.timestamp("us", tz=column.type.tz if zoned else None)
    try:
        whole = column.cast(options=pc.CastOptions(wanted, allow_time_truncate=True))
    except pa.ArrowInvalid as error:
        what = f"column {name!r} holds a moment more than 290,000 years from today."
        raise DataError(what, where=block.path, advice="Let the contract refuse such rows.") from error
    us: NDArray[np.int64] = pc.fill_null(whole.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return Instants(us, is_there, zoned)


def _places(us: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """By cycle, at which of its places each moment is."""
    days = us // DAY_US
    dates = days.astype("datetime64[D]")
    return {
        "day": us % DAY_US // MINUTE_US,
        "week": (days + 3) % 7,  # 1970 began on a Thursday; 0 is a Monday
        "year": (dates - dates.astype("datetime64[Y]").astype("datetime64[D]")).astype(np.int64),
    }


class TimeFit:
    """The first and last moment of a column, and the cycles of which it has several places; merges in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_values = 0
        self._spans: dict[str, tuple[int, int]] = {}
        """The least and the greatest, of the moments themselves and of the places of each cycle."""
        self._zoned: dict[bool, str] = {}
        """Whether moments have a zone, and the first file where they do or do not."""

    def add(self, block: SourceBlock, *, may_be_missing: bool) -> None:
        found = instants(block, self.name, may_be_missing=may_be_missing)
        self._zoned[found.is_zoned] = min(block.path, self._zoned.get(found.is_zoned, block.path))
        us = found.us[found.is_there]
        if len(us):
            self.num_values += len(us)
            self._widen({name: (int(each.min()), int(each.max())) for name, each in {"": us, **_places(us)}.items()})

    def merge(self, other: TimeFit) -> None:
        self.num_values += other.num_values
        self._widen(other._spans)
        for is_zoned, path in other._zoned.items():
            self._zoned[is_zoned] = min(path, self._zoned.get(is_zoned, path))

    def _widen(self, spans: dict[str, tuple[int, int]]) -> None:
        for name, (least, greatest) in spans.items():
            known = self._spans.get(name, (least, greatest))
            self._spans[name] = (min(least, known[0]), max(greatest, known[1]))

    def statistics(self) -> dict[str, Json]:
        """Raises `DataError`: no value at all, or a zone in some files and none in others."""
        if not self.num_values:
            raise DataError(f"column {self.name!r} has no value in the training split.")
        if len(self._zoned) > 1:
            raise DataError(
                f"column {self.name!r} has a zone in {self._zoned[True]} and none in {self._zoned[False]}.",
                advice="Write all files alike, or leave the column out of the encoder.",
            )
        first, last = self._spans[""]
        # Of less than one whole cycle, its place would say again how far through the rows a moment is.
        cycles = [
            name
            for name, cycle in CYCLES.items()
            if self._spans[name][0] < self._spans[name][1] and last - first >= cycle.length_us
        ]
        return {
            "column": self.name,
            "num_values": self.num_values,
            "first_us": first,
            "last_us": last,
            "is_zoned": True in self._zoned,
            "cycles": cycles,
        }


class TimeParts:
    """A column's moments as parts.

    Args:
        statistics: what `TimeFit` learnt.
    """

    def __init__(self, statistics: TimeStatistics, *, fills_missing: bool) -> None:
        self.name = statistics.column
        self.num_parts = len(part_names(statistics))
        self._first, self._last = statistics.first_us, statistics.last_us
        self._is_zoned = statistics.is_zoned
        self._circles = {cycle: _circle(CYCLES[cycle].num_places) for cycle in statistics.cycles}
        self._fills_missing = fills_missing

    def __call__(self, block: SourceBlock) -> NDArray[np.float32]:
        """(rows, parts); raises as `instants`."""
        found = instants(block, self.name, may_be_missing=self._fills_missing, is_zoned=self._is_zoned)
        made = np.zeros((len(found.us), self.num_parts), dtype=np.float32)
        if self._last > self._first:
            # As float64, for the difference of two extremes is no int64; exact for 285 years around 1970.
            since = np.clip(found.us, self._first, self._last).astype(np.float64) - float(self._first)
            made[:, 0] = since / (float(self._last) - float(self._first)) * 2 - 1
        places = _places(found.us) if self._circles else {}
        for number, (cycle, circle) in enumerate(self._circles.items()):
            made[:, 1 + 2 * number : 3 + 2 * number] = circle[places[cycle]]
        made[~found.is_there] = 0
        return made


def _circle(num_places: int) -> NDArray[np.float32]:
    """Sine and cosine of each place, rounded from float64: a table, since NumPy's own sine depends on the processor."""
    angles = (2 * math.pi * place / num_places for place in range(num_places))
    return np.array([(math.sin(angle), math.cos(angle)) for angle in angles], dtype=np.float32)


def fitted_type(statistics: TimeStatistics) -> Any:
    """The Arrow type that rows are brought to."""
    return pa.timestamp("us", tz="UTC" if statistics.is_zoned else None)
