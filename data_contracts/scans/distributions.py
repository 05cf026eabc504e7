"""Distributions of columns: bins from the accepted snapshot where there are some, counts from figures.

A category that the contract does not name falls by its MD5 into one of 64 bins, so that no value is ever written down.
Where a column has no accepted bins, they are cut at quantiles of evenly spaced rows, the same for the same snapshot.

Accepted bins stay, so that snapshots are compared like with like and unchanged files need no second count, until one of
them has come to hold most of the values: what happens inside it goes unseen. This snapshot is then evaluated by them
once more and, if it passes, hands on bins of its own; the next one is compared in these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.figures import Grouped
from headway.data_contracts.scans.rows_database import NAMED_ROWS, identifier, literal
from headway.data_contracts.store.documents import Distribution
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN
from headway.data_contracts.types.type_families import MEASURED, family

MAX_SAMPLED_ROWS = 100_000
NUM_HASHED = 64
WORN_SHARE = 0.5
"""Of all numbers. Bins are worn when one holds more, though cutting them again would halve the fullest."""
NULL, NAN, OTHER = -1, -2, -3
"""Groups beside the bins. OTHER is a category that is none of those named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bins:
    """How values fall into bins.

    Args:
        edges: upper bounds, inclusive, of all bins but the last, of a numeric column.
        categories: names of bins, of a column of categories; `other` comes after them.
    """

    column: str
    of: str
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    num_hashed: int = 0

    @property
    def num_bins(self) -> int:
        return self.num_hashed or (len(self.categories) + 1 if self.categories else len(self.edges) + 1)


def is_numeric(check: Check) -> bool:
    return check.arguments["of"] == "lengths" or family(check.arguments["type"]) in ("integer", "float", "decimal")


def expression(check: Check) -> str:
    """The value of a row that is binned."""
    column = identifier(check.column)
    if check.arguments["of"] == "values":
        return column
    return {"string": "length", "binary": "octet_length", "list": "len"}[_measured(check)] + f"({column})"


def _measured(check: Check) -> str:
    kind = family(check.arguments["type"])
    assert kind in MEASURED
    return kind


def bins_of(check: Check, baseline: Distribution | None, cut: Sequence[float]) -> Bins:
    """The bins for a drift check: the accepted ones, else those that the contract names, else `cut`."""
    of = check.arguments["of"]
    if baseline is not None and fits(check, baseline):
        return Bins(column=check.column, of=of, edges=baseline.edges, categories=baseline.categories,
                    num_hashed=baseline.num_hashed)  # fmt: skip
    if is_numeric(check):
        return Bins(column=check.column, of=of, edges=tuple(cut))
    names = _categories(check)
    return Bins(column=check.column, of=of, categories=names, num_hashed=0 if names else NUM_HASHED)


def fits(check: Check, baseline: Distribution) -> bool:
    """Whether the accepted bins are of the kind that the check asks for now."""
    if (baseline.column, baseline.of) != (check.column, check.arguments["of"]):
        return False
    if is_numeric(check):
        return (
            baseline.num_requested == check.arguments["num_bins"]
            and not baseline.num_hashed
            and not baseline.categories
        )
    return baseline.categories == _categories(check) and bool(baseline.categories or baseline.num_hashed)


def _categories(check: Check) -> tuple[str, ...]:
    if family(check.arguments["type"]) == "bool":
        return ("false", "true")
    return tuple(str(value) for value in check.arguments["classes"] or ())


def cut_edges(connection: duckdb.DuckDBPyConnection, check: Check, num_rows: int) -> list[float]:
    """Upper bounds of bins that hold about as many rows each, from at most some 100,000 evenly spaced rows."""
    stride = max(1, -(-num_rows // MAX_SAMPLED_ROWS))
    value = f"({expression(check)})::DOUBLE"
    num_bins = check.arguments["num_bins"]
    shares = ", ".join(repr(place / num_bins) for place in range(1, num_bins))
    # A packed source has one row a file, so both numbers count.
    sql = (
        f"SELECT quantile_disc({value}, [{shares}]) FROM {NAMED_ROWS} "
        f"WHERE ({ROW_COLUMN} + {FILE_COLUMN}) % {stride} = 0 AND isfinite({value})"
    )
    row = connection.execute(sql).fetchone()
    found = [] if row is None or row[0] is None else row[0]
    # Where one value is common, several quantiles are equal, and a bin between equal edges would stay empty.
    return sorted({float(edge) for edge in found})


def counting(check: Check, bins: Bins) -> Grouped:
    """The figure that counts rows by bin."""
    value = expression(check)
    null = f"WHEN {value} IS NULL THEN {NULL}"
    if bins.num_hashed:
        # MD5 and not DuckDB's `hash`, which may change between its releases, while accepted bins stay.
        return Grouped(f"CASE {null} ELSE (md5_number_lower({value}::VARCHAR) % {bins.num_hashed})::INT END")
    if bins.categories:
        return Grouped(_by_category(check, value, null))
    # DuckDB holds NaN to be above every number, so the last bin would count it.
    nan = f"WHEN isnan({value}) THEN {NAN}" if family(check.arguments["type"]) == "float" else ""
    steps = " ".join(f"WHEN {value} <= {literal(edge)} THEN {place}" for place, edge in enumerate(bins.edges))
    return Grouped(f"CASE {null} {nan} {steps} ELSE {len(bins.edges)} END")


def _by_category(check: Check, value: str, null: str) -> str:
    if family(check.arguments["type"]) == "bool":
        return f"CASE {null} WHEN {value} THEN 1 ELSE 0 END"
    steps = " ".join(f"WHEN {literal(name)} THEN {place}" for place, name in enumerate(check.arguments["classes"]))
    return f"CASE WHEN {value} IS NULL THEN {NULL} ELSE CASE {value} {steps} ELSE {OTHER} END END"


def distribution(check: Check, bins: Bins, groups: Mapping[int, int], baseline: Distribution | None) -> Distribution:
    """Counts in bins, beside the accepted ones where they are of the same bins."""
    counts = [groups.get(place, 0) for place in range(bins.num_bins)]
    if bins.categories:
        counts[-1] += groups.get(OTHER, 0)
    is_comparable = baseline is not None and fits(check, baseline)
    return Distribution(
        column=check.column,
        of=bins.of,
        edges=bins.edges,
        categories=bins.categories,
        num_hashed=bins.num_hashed,
        num_requested=check.arguments["num_bins"],
        counts=tuple(counts),
        num_nulls=groups.get(NULL, 0),
        num_nans=groups.get(NAN, 0),
        baseline_counts=baseline.counts if baseline is not None and is_comparable else None,
        baseline_num_nulls=baseline.num_nulls if baseline is not None and is_comparable else None,
        baseline_num_nans=baseline.num_nans if baseline is not None and is_comparable else None,
    )


def fullest_share(found: Distribution) -> float:
    """Of the values that are neither null nor NaN, the share in the bin that holds most."""
    return max(found.counts) / max(1, sum(found.counts))


def histograms(found: Distribution) -> tuple[list[int], list[int]] | None:
    """The accepted counts and the present ones, nulls and NaN among the bins; None where nothing is accepted."""
    if found.baseline_counts is None:
        return None
    before = [*found.baseline_counts, found.baseline_num_nulls or 0, found.baseline_num_nans or 0]
    return before, [*found.counts, found.num_nulls, found.num_nans]


def find_baseline(distributions: Iterable[Distribution], check: Check) -> Distribution | None:
    return next((each for each in distributions if fits(check, each)), None)
