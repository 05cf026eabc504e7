"""What was found for one check of a contract: the figures that its verdict stands on, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from headway.data_contracts.engine.comparison import DistributionComparison
from headway.data_contracts.engine.verdicts import CheckEvidence
from headway.data_contracts.rules.checks import SCANNED, Check
from headway.data_contracts.scans.broken_rows import first_broken
from headway.data_contracts.scans.column_figures import figures_of, statistic_value
from headway.data_contracts.scans.exact_checks import one_value
from headway.data_contracts.scans.leakage import PipelineSplit
from headway.data_contracts.scans.rows_database import ROWS, identifier
from headway.data_contracts.scans.set_scans import SetRuleResult, evaluate_set
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.suites.evaluator import SuiteEvaluator
from headway.data_contracts.suites.literals import UnsupportedExpectation
from headway.data_contracts.tables.rows_files import RowsFiles

if TYPE_CHECKING:
    from headway.data_contracts.engine.duckdb_engine import ExpectationOutcome

MAX_BROKEN_ROWS = 10
"""That a verdict names."""
GX_RAISED = "Great Expectations raised an error"


def find_evidence(
    connection: duckdb.DuckDBPyConnection,
    tallies: Tallies,
    check: Check,
    outcome: ExpectationOutcome | None,
    compared: DistributionComparison,
    split: PipelineSplit | None,
    rows: RowsFiles,
    types: Mapping[str, str],
    given_suite: SuiteEvaluator,
) -> CheckEvidence:
    """What the rows say of one check; `outcome` is Great Expectations' own, where it was asked.

    Args:
        types: those that the contract asks for, by column.
    """
    found: dict[str, Any] = {}
    raised = unfit = ""
    try:
        # By kind: each is answered by whoever can do it in the fewest scans.
        if check.kind in SCANNED:
            found["finding"] = evaluate_set(connection, check, split)
        elif check.kind == "suite":
            answer = given_suite.answer(check)
            found["finding"] = SetRuleResult(passed=answer.passed, observed=answer.observed)
        elif check.rule_id in compared.raised:
            raised = compared.raised[check.rule_id]
        elif check.kind in ("volume", "drift"):
            found["finding"] = compared.findings[check.rule_id]
        elif check.kind == "statistic":
            found["aggregate"] = _aggregate(connection, tallies, check, rows)
        else:
            values = _values(tallies.total(figures_of(check, rows.columns.get(check.column))))
            found |= dict(
                zip(("num_broken", "num_evaluated") if check.is_row_level else ("num_evaluated",), values, strict=False)
            )
            # Only where it fails by them: that is a scan of its own.
            if check.is_row_level and found["num_broken"] > check.num_tolerated(found["num_evaluated"]):
                found["broken_rows"] = first_broken(connection, check, MAX_BROKEN_ROWS)
    # One check that fails in SQL must not end the others; it has failed, and its kind of error is known.
    except duckdb.Error as error:
        raised = type(error).__name__
    except UnsupportedExpectation as error:
        raised, unfit = type(error).__name__, str(error)
    # Great Expectations reports an error as a result; it counts as one here.
    if not raised and outcome is not None and outcome.raised:
        raised = GX_RAISED
    return CheckEvidence(
        expectation_passed=None if outcome is None else outcome.passed,
        raised=raised,
        # Only where something raised: a type that is other than asked has a check of its own.
        unfit=(unfit or _unfit(check, types, rows.columns)) if raised else "",
        actual_type=rows.columns.get(check.column),
        actual_columns=tuple(rows.columns),
        **found,
    )


def _unfit(check: Check, types: Mapping[str, str], actual: Mapping[str, str]) -> str:
    """What is wrong with the columns that a check speaks of, which explains why it raised; empty: nothing."""
    named = (check.column,) if check.column else check.columns
    missing = [name for name in named if name not in actual]
    if missing:
        return "the column is missing" if len(named) == 1 else f"missing: {', '.join(missing)}"
    others = [name for name in named if actual[name] != types.get(name, actual[name])]
    message = [f"{'it' if len(named) == 1 else name} is {actual[name]}, not {types[name]}" for name in others]
    return "; ".join(message)


def _values(values: Sequence[Any]) -> list[Any]:
    """Raises the first error among the values of figures."""
    for value in values:
        if isinstance(value, Exception):
            raise value
    return list(values)


def _aggregate(connection: duckdb.DuckDBPyConnection, tallies: Tallies, check: Check, rows: RowsFiles) -> float | None:
    """The mean, standard deviation or sum of a column; None for figures that are values of the data themselves."""
    statistic = check.arguments["statistic"]
    functions = {"mean": "avg", "stdev": "stddev_samp", "sum": "sum"}
    # A minimum or median is a value of the data, and a receipt never echoes one.
    if statistic not in functions:
        return None
    figures = figures_of(check, rows.columns.get(check.column))
    # From the tallies where it adds up over files, which is exact; else from a scan.
    if figures:
        return statistic_value(statistic, _values(tallies.total(figures)))
    value = one_value(connection, f"SELECT {functions[statistic]}({identifier(check.column)}) FROM {ROWS}")
    return None if value is None else float(value)
