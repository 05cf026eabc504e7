"""What was found for one check of a contract: the figures that its verdict stands on, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb

from data_contracts.checks import SCANNED, Check
from data_contracts.column_figures import figures_of, statistic_value
from data_contracts.comparison import Comparison
from data_contracts.exact_checks import one_value
from data_contracts.leakage import PipelineSplit
from data_contracts.rows_database import ROWS, identifier
from data_contracts.rows_files import RowsFiles
from data_contracts.set_scans import Finding, judge_set
from data_contracts.suite_judge import SuiteJudge
from data_contracts.suite_values import Unsuitable
from data_contracts.tallies import Tallies
from data_contracts.verdicts import Evidence

if TYPE_CHECKING:
    from data_contracts.duckdb_engine import Outcome

GX_RAISED = "Great Expectations raised an error"


def find_evidence(
    connection: duckdb.DuckDBPyConnection,
    tallies: Tallies,
    check: Check,
    outcome: Outcome | None,
    compared: Comparison,
    split: PipelineSplit | None,
    rows: RowsFiles,
    types: Mapping[str, str],
    given_suite: SuiteJudge,
) -> Evidence:
    """What the rows say of one check; `outcome` is Great Expectations' own, where it was asked.

    Args:
        types: those that the contract asks for, by column.
    """
    found: dict[str, Any] = {}
    raised = unfit = ""
    try:
        if check.kind in SCANNED:
            found["finding"] = judge_set(connection, check, split)
        elif check.kind == "suite":
            answer = given_suite.answer(check)
            found["finding"] = Finding(passed=answer.passed, observed=answer.observed)
        elif check.rule_id in compared.raised:
            raised = compared.raised[check.rule_id]
        elif check.kind in ("volume", "drift"):
            found["finding"] = compared.findings[check.rule_id]
        elif check.kind == "statistic":
            found["aggregate"] = _aggregate(connection, tallies, check, rows)
        else:
            values = _values(tallies.total(figures_of(check, rows.columns.get(check.column))))
            found |= dict(
                zip(("num_broken", "num_judged") if check.is_row_level else ("num_judged",), values, strict=False)
            )
    except duckdb.Error as error:
        raised = type(error).__name__
    except Unsuitable as error:
        raised, unfit = type(error).__name__, str(error)
    if not raised and outcome is not None and outcome.raised:
        raised = GX_RAISED
    return Evidence(
        expectation_passed=None if outcome is None else outcome.passed,
        raised=raised,
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
    said = [f"{'it' if len(named) == 1 else name} is {actual[name]}, not {types[name]}" for name in others]
    return "; ".join(said)


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
    if statistic not in functions:
        return None
    figures = figures_of(check, rows.columns.get(check.column))
    if figures:
        return statistic_value(statistic, _values(tallies.total(figures)))
    value = one_value(connection, f"SELECT {functions[statistic]}({identifier(check.column)}) FROM {ROWS}")
    return None if value is None else float(value)
