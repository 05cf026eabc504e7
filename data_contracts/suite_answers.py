"""What an expectation of a given suite needs to know of the rows, and what it answers. Pure but for `Asker`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from data_contracts.digests import sha256_of
from data_contracts.figures import Figure
from data_contracts.tallies import Tallies

MAX_REMEMBERED_TEXTS = 1 << 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A verdict.

    Args:
        num_unexpected: rows that break it; None where it speaks of no single row.
        num_judged: rows that it speaks of.
    """

    passed: bool
    num_unexpected: int | None = None
    num_judged: int | None = None

    @property
    def observed(self) -> str:
        if self.num_unexpected is None or self.num_judged is None:
            return "holds" if self.passed else "does not hold"
        rows = f"{self.num_judged:,} row{'' if self.num_judged == 1 else 's'}"
        return f"{self.num_unexpected:,} of {rows} break it" if self.num_unexpected else f"all {rows} hold"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Who answers: figures that add up over files come from the tallies, all else from a scan of the whole set."""

    connection: duckdb.DuckDBPyConnection
    tallies: Tallies

    def totals(self, figures: Sequence[Figure]) -> list[Any]:
        """Raises `duckdb.Error`: one of them cannot be counted."""
        values = self.tallies.total(figures)
        for value in values:
            if isinstance(value, Exception):
                raise value
        return values

    def row(self, sql: str) -> tuple[Any, ...]:
        """Raises `duckdb.Error`: it cannot be queried."""
        found = self.connection.execute(sql).fetchone()
        assert found is not None, sql
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """An expectation, compiled for columns of given types.

    Args:
        answer: asks and decides.
        figures: what it asks of the tallies, so that one scan counts for all.
        functions: what its SQL calls: from a text to whether it fits.
    """

    answer: Callable[[Asker], Answer]
    figures: tuple[Figure, ...] = ()
    functions: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)


def function_name(kind: str, argument: str) -> str:
    """A name that says what the function does, since figures are remembered by their SQL."""
    return f"headway_{kind}_{sha256_of([kind, argument])[:16]}"


def register(connection: duckdb.DuckDBPyConnection, functions: Mapping[str, Callable[[str], bool]]) -> None:
    """Make functions known to SQL."""
    for name, fits in functions.items():
        with contextlib.suppress(duckdb.InvalidInputException):
            connection.remove_function(name)
        connection.create_function(name, _by_batch(fits), ["VARCHAR"], "BOOLEAN", type="arrow")  # type: ignore[call-overload]


def _by_batch(fits: Callable[[str], bool]) -> Callable[[Any], Any]:
    import pyarrow as pa

    remembered = functools.lru_cache(MAX_REMEMBERED_TEXTS)(fits)

    def judge(texts: Any) -> Any:
        return pa.array([None if text is None else remembered(text) for text in texts.to_pylist()], pa.bool_())

    return judge
