"""What an expectation of a given suite needs to know of the rows, and what it answers. Pure but for `ResultContext`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from headway.data_contracts.scans.figures import Figure
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.suites.python_texts import TextPredicate
from headway.data_contracts.types.report_text import count


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectationResult:
    """A verdict.

    Args:
        num_unexpected: rows that break it; None where it speaks of no single row.
        num_evaluated: rows that it speaks of.
    """

    passed: bool
    num_unexpected: int | None = None
    num_evaluated: int | None = None

    @property
    def observed(self) -> str:
        if self.num_unexpected is None or self.num_evaluated is None:
            return "holds" if self.passed else "does not hold"
        rows = count(self.num_evaluated, "row")
        return f"{self.num_unexpected:,} of {rows} break it" if self.num_unexpected else f"all {rows} hold"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultContext:
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
class CompiledExpectation:
    """An expectation, compiled for columns of given types.

    Args:
        answer: asks and decides.
        figures: what it asks of the tallies, so that one scan counts for all.
        functions: what its SQL calls.
    """

    answer: Callable[[ResultContext], ExpectationResult]
    figures: tuple[Figure, ...] = ()
    functions: tuple[TextPredicate, ...] = ()


def register(connection: duckdb.DuckDBPyConnection, functions: Iterable[TextPredicate]) -> None:
    """Make functions known to SQL."""
    for fits in functions:
        # A connection may be used for several suites; the last function of a name counts.
        with contextlib.suppress(duckdb.InvalidInputException):
            connection.remove_function(fits.name)
        connection.create_function(fits.name, _by_batch(fits), ["VARCHAR"], "BOOLEAN", type="arrow")  # type: ignore[call-overload]


def _by_batch(fits: TextPredicate) -> Callable[[Any], Any]:
    # Batches, not rows: DuckDB hands over thousands of texts at a time.
    import pyarrow as pa

    return lambda texts: pa.array(fits(texts.to_pylist()), pa.bool_())
