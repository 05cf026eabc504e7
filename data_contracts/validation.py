"""Validation: hold the rows of a snapshot against a contract, and write the receipt.

A pure function of contract, snapshot, rows and accepted baseline: equal inputs give equal bytes, whether files'
figures were remembered or counted. Everything that adds up over files is counted first, in one scan; Great Expectations
judges by these figures; what speaks of the whole set is scanned. Whatever could not be judged has failed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from data_contracts.checks import Check, compile_checks
from data_contracts.column_figures import SUMMED, figures_of
from data_contracts.comparison import Comparison, compare_distributions, newest_figure, newest_rows
from data_contracts.contract import Contract
from data_contracts.documents import ContractReceipt, ExpectationVerdict, Newest, Snapshot, StoredFile
from data_contracts.evidence import GX_RAISED, find_evidence
from data_contracts.figures import Figure, Scalar
from data_contracts.file_states import FileStates
from data_contracts.label_leaks import Label, judge_label
from data_contracts.leakage import PipelineSplit, register_split
from data_contracts.quarantine import Quarantine, set_aside, write_quarantine
from data_contracts.readable_files import refuse_unreadable
from data_contracts.rows_database import ALL_ROWS, RowsDatabase, identifier, out_of_memory
from data_contracts.rows_files import FILE_COLUMN, RowsFiles
from data_contracts.suite_judge import SuiteJudge
from data_contracts.tallies import Tallies
from data_contracts.type_families import family
from data_contracts.verdicts import (
    Evidence,
    is_accepted,
    quarantine_verdict,
    snapshot_verdict,
    unparsable_verdict,
    verdict_of,
)

if TYPE_CHECKING:
    from data_contracts.duckdb_engine import Outcome

MEMORY_LIMITS = ("128MB", "1GB")
"""What DuckDB may hold, tried in turn. The first is enough for all that sorts, groups or joins, however many rows there
are: it spills, and at 20 million rows is no slower. The others are for what cannot spill, such as medians or very wide
rows, and are taken only when something could not be judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a contract's rules may refer to besides the rows.

    Args:
        baseline: the receipt of the last accepted snapshot; None: nothing is accepted yet.
        split: the pipeline's own.
        suite: expectations given beside the contract.
        suite_file: their own text in the workspace; the receipt names it.
        states: what files counted earlier; filled with what is counted now.
        label: what the pipeline predicts, and from what; None: nothing that can be judged here.
    """

    baseline: ContractReceipt | None = None
    split: PipelineSplit | None = None
    suite: tuple[Check, ...] = ()
    suite_file: StoredFile | None = None
    states: FileStates | None = None
    label: Label | None = None


def validate(
    contract: Contract,
    contract_file: StoredFile,
    snapshot: Snapshot,
    rows: RowsFiles,
    scratch: Path,
    *,
    quarantine_file: Path,
    surroundings: Surroundings | None = None,
) -> ContractReceipt:
    """Judge every expectation of the contract, and set aside the rows its quarantine rules name.

    Args:
        contract_file: the contract's own text in the workspace; the receipt names it.
        rows: the snapshot's rows as Parquet files.
        scratch: a local folder for what does not fit into memory; nothing stays there.
        quarantine_file: where the rows set aside are written, if there are any; the caller publishes the file under the
            path that the receipt gives.

    Returns:
        The receipt, `passed` or not. The caller decides what a failure means.

    Raises:
        DataError: a file cannot be read, or its rows take too much memory.
        ConfigError: a leakage rule and nothing that says which split a row is in, or a suite's arguments are refused.
    """
    given = surroundings or Surroundings()
    checks = (*compile_checks(contract), *given.suite)
    for memory_limit in MEMORY_LIMITS[:-1]:
        with contextlib.suppress(duckdb.OutOfMemoryException):
            judged = _judge(contract, checks, snapshot, rows, scratch, quarantine_file, given, memory_limit)
            if not judged.may_lack_memory:
                if judged.has_raised:
                    refuse_unreadable(rows)
                return _receipt(contract, contract_file, given.suite_file, checks, snapshot, judged)
    try:
        judged = _judge(contract, checks, snapshot, rows, scratch, quarantine_file, given, MEMORY_LIMITS[-1])
    except duckdb.OutOfMemoryException as error:
        raise out_of_memory(MEMORY_LIMITS[-1]) from error
    if judged.has_raised:
        refuse_unreadable(rows)
    return _receipt(contract, contract_file, given.suite_file, checks, snapshot, judged)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """Everything found out about the rows."""

    num_different: int | None
    quarantine: Quarantine
    left_out: StoredFile | None
    compared: Comparison
    evidence: tuple[Evidence, ...]
    """One for each check."""
    metrics: dict[str, float]
    freshness: tuple[Newest, ...]
    baseline: ContractReceipt | None
    label: tuple[ExpectationVerdict, ...]
    """Of what the pipeline predicts; empty where it does not say."""

    @property
    def has_raised(self) -> bool:
        """Whether something was not judged, which a file that cannot be read may be the reason of."""
        return bool(self.quarantine.raised) or any(found.raised for found in self.evidence)

    @property
    def may_lack_memory(self) -> bool:
        """Whether something was not judged that more memory might let be. Great Expectations does not say why."""
        errors = {*self.quarantine.raised.values(), *(found.raised for found in self.evidence)}
        return not errors.isdisjoint({duckdb.OutOfMemoryException.__name__, GX_RAISED})


def _judge(
    contract: Contract,
    checks: Sequence[Check],
    snapshot: Snapshot,
    rows: RowsFiles,
    scratch: Path,
    quarantine_file: Path,
    given: Surroundings,
    memory_limit: str,
) -> _Judged:
    baseline = given.baseline if contract.needs_baseline else None
    with tempfile.TemporaryDirectory(prefix="validate-", dir=scratch) as folder:
        database = RowsDatabase(folder=Path(folder).resolve(), rows=rows, memory_limit=memory_limit)
        with database.connect() as connection:
            database.create_views(connection)
            if given.split is not None:
                register_split(connection, given.split)
            num_different = _num_different(connection, rows, snapshot)
            quarantining = [check for check in checks if check.quarantine_rule]
            limit_ratio = contract.quarantine_limit_ratio
            quarantine = set_aside(connection, database, quarantining, limit_ratio, given.states)
            left_out = write_quarantine(connection, quarantine, quarantine_file)
            # Rows that a rule could not set aside this time are no ground for what is remembered.
            states = None if quarantine.raised else given.states
            tallies = Tallies(connection, database, is_set_aside=quarantine.num_quarantined > 0, states=states)
            given_suite = SuiteJudge(connection, tallies, checks, rows.columns)
            _count(tallies, checks, contract, rows, given_suite.figures)
            outcomes = _run_expectations(contract.name, checks, connection, rows, tallies)
            types = {name: column.type for name, column in contract.columns.items()}
            compared = compare_distributions(connection, tallies, checks, baseline, quarantine.num_remaining)
            return _Judged(
                num_different=num_different,
                quarantine=quarantine,
                left_out=left_out,
                compared=compared,
                evidence=tuple(
                    find_evidence(
                        connection,
                        tallies,
                        check,
                        outcomes.get(check.rule_id),
                        compared,
                        given.split,
                        rows,
                        types,
                        given_suite,
                    )
                    for check in checks
                ),
                metrics=_metrics(tallies, rows, quarantine, snapshot) | dict(compared.metrics),
                freshness=newest_rows(tallies, contract.freshness),
                baseline=baseline,
                label=() if given.label is None else (judge_label(connection, given.label, dict(rows.columns)),),
            )


def _receipt(
    contract: Contract,
    contract_file: StoredFile,
    suite_file: StoredFile | None,
    checks: Sequence[Check],
    snapshot: Snapshot,
    judged: _Judged,
) -> ContractReceipt:
    quarantine, baseline = judged.quarantine, judged.baseline
    verdicts = (
        snapshot_verdict(judged.num_different, len(snapshot.files)),
        quarantine_verdict(quarantine, contract.quarantine_limit_ratio),
        *([] if contract.quarantined_types is None else [unparsable_verdict(quarantine)]),
        *(verdict_of(check, found, quarantine) for check, found in zip(checks, judged.evidence, strict=True)),
        *judged.label,
    )
    return ContractReceipt(
        contract=contract_file,
        suite=suite_file,
        contract_name=contract.name,
        contract_version=contract.version,
        snapshot=snapshot.link,
        passed=is_accepted(verdicts),
        num_rows=quarantine.num_remaining,
        num_quarantined=quarantine.num_quarantined,
        quarantine=judged.left_out,
        verdicts=verdicts,
        metrics=judged.metrics,
        baseline=None if baseline is None else baseline.link,
        distributions=judged.compared.distributions,
        freshness=judged.freshness,
    )


def _num_different(connection: duckdb.DuckDBPyConnection, rows: RowsFiles, snapshot: Snapshot) -> int | None:
    """Files that are in the snapshot or in the rows and not in both, and files with another number of rows."""
    try:
        found = connection.execute(f"SELECT {FILE_COLUMN}, count(*) FROM {ALL_ROWS} GROUP BY ALL").fetchall()
    except duckdb.Error:
        return None
    counted: dict[int, int] = dict(found)
    num_other = sum(file.num_rows != counted.pop(place, 0) for place, file in enumerate(rows.files))
    return num_other + len(set(rows.files) ^ set(snapshot.files)) + len(counted)


def _count(
    tallies: Tallies, checks: Sequence[Check], contract: Contract, rows: RowsFiles, further: Sequence[Figure]
) -> None:
    """Ask for every figure at once, so that one scan answers; later questions are answered from memory."""
    figures = [figure for check in checks for figure in figures_of(check, rows.columns.get(check.column))]
    newest = [newest_figure(rule) for rule in contract.freshness]
    tallies.total([Scalar("count(*)"), *figures, *further, *_sums(rows).values(), *newest])


def _sums(rows: RowsFiles) -> dict[str, Scalar]:
    """Sums that are exact in any order, so that they may stand in a receipt."""
    return {
        name: Scalar(f"sum({identifier(name)})")
        for name, type_name in rows.columns.items()
        if family(type_name) in SUMMED
    }


def _run_expectations(
    name: str, checks: Sequence[Check], connection: duckdb.DuckDBPyConnection, rows: RowsFiles, tallies: Tallies
) -> dict[str, Outcome]:
    from data_contracts.duckdb_engine import Outcome, judge
    from data_contracts.suite import build_suite, expectation_checks

    asked = expectation_checks(checks)
    suite = build_suite(name, asked)
    try:
        outcomes = judge(suite, connection, columns=rows.columns, tallies=tallies, checks=asked)
    except Exception:  # whatever it was, nothing was judged
        outcomes = {}
    unanswered = Outcome(passed=False, raised=True)
    return {check.rule_id: outcomes.get(check.rule_id, unanswered) for check in asked}


def _metrics(tallies: Tallies, rows: RowsFiles, quarantine: Quarantine, snapshot: Snapshot) -> dict[str, float]:
    """Figures to watch over time, besides drift: rows, bytes, and the sum of every column whose sum is exact."""
    sums = _sums(rows)
    totals = zip(sums, tallies.total(list(sums.values())), strict=True)
    return {
        "num_rows": quarantine.num_remaining,
        "num_quarantined": quarantine.num_quarantined,
        "snapshot_bytes": snapshot.size_bytes,
        **{f"{name}.sum": float(total) for name, total in totals if not isinstance(total, Exception)},
    }
