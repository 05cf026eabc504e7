"""Validation: hold the rows of a snapshot against a contract, and write the receipt.

A pure function of contract, snapshot, rows and accepted baseline: equal inputs give equal bytes, whether files'
figures were remembered or counted. Everything that adds up over files is counted first, in one scan; Great Expectations
evaluates by these figures; what speaks of the whole set is scanned. Whatever could not be evaluated has failed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from headway.data_contracts.engine.comparison import (
    DistributionComparison,
    compare_distributions,
    newest_figure,
    newest_rows,
)
from headway.data_contracts.engine.evidence import GX_RAISED, find_evidence
from headway.data_contracts.engine.quarantine import Quarantine, quarantine_rows, write_quarantine
from headway.data_contracts.engine.verdicts import (
    CheckEvidence,
    is_accepted,
    quarantine_verdict,
    snapshot_verdict,
    unparsable_verdict,
    verdict_of,
)
from headway.data_contracts.rules.checks import Check, compile_checks
from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.scans.column_figures import SUMMED, figures_of
from headway.data_contracts.scans.figures import Figure, Scalar
from headway.data_contracts.scans.file_states import FileStates
from headway.data_contracts.scans.label_leaks import Label, evaluate_label
from headway.data_contracts.scans.leakage import PipelineSplit, register_split
from headway.data_contracts.scans.rows_database import ALL_ROWS, RowsDatabase, identifier, out_of_memory
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.store.documents import (
    ContractReceipt,
    ExpectationVerdict,
    FreshnessObservation,
    Snapshot,
    StoredFile,
)
from headway.data_contracts.suites.evaluator import SuiteEvaluator
from headway.data_contracts.tables.readable_files import refuse_unreadable
from headway.data_contracts.tables.rows_files import FILE_COLUMN, RowsFiles
from headway.data_contracts.types.type_families import family

if TYPE_CHECKING:
    from headway.data_contracts.engine.duckdb_engine import ExpectationOutcome

MEMORY_LIMITS = ("128MB", "1GB")
"""What DuckDB may hold, tried in turn. The first is enough for all that sorts, groups or joins, however many rows there
are: it spills, and at 20 million rows is no slower. The others are for what cannot spill, such as medians or very wide
rows, and are taken only when something could not be evaluated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationContext:
    """What a contract's rules may refer to besides the rows.

    Args:
        baseline: the receipt of the last accepted snapshot; None: nothing is accepted yet.
        split: the pipeline's own.
        suite: expectations given beside the contract.
        suite_file: their own text in the workspace; the receipt names it.
        states: what files counted earlier; filled with what is counted now.
        label: what the pipeline predicts, and from what; None: nothing that can be evaluated here.
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
    surroundings: ValidationContext | None = None,
) -> ContractReceipt:
    """Evaluate every expectation of the contract, and quarantine the rows its quarantine rules name.

    Args:
        contract_file: the contract's own text in the workspace; the receipt names it.
        rows: the snapshot's rows as Parquet files.
        scratch: a local folder for what does not fit into memory; nothing stays there.
        quarantine_file: where quarantined rows are written, if there are any; the caller publishes the file under the
            path that the receipt gives.

    Returns:
        The receipt, `passed` or not. The caller decides what a failure means.

    Raises:
        DataError: a file cannot be read, or its rows take too much memory.
        ConfigError: a leakage rule and nothing that says which split a row is in, or a suite's arguments are refused.
    """
    given = surroundings or ValidationContext()
    checks = (*compile_checks(contract), *given.suite)
    # The small limit first: a validation must leave memory to others, and nearly all fits into it.
    for memory_limit in MEMORY_LIMITS[:-1]:
        with contextlib.suppress(duckdb.OutOfMemoryException):
            evaluated = _evaluate(contract, checks, snapshot, rows, scratch, quarantine_file, given, memory_limit)
            # Great Expectations hides the reason of an error, so any of its errors may be a lack of memory.
            if not evaluated.may_lack_memory:
                # A file that cannot be read explains everything else, and is named instead.
                if evaluated.has_raised:
                    refuse_unreadable(rows)
                return _receipt(contract, contract_file, given.suite_file, checks, snapshot, evaluated)
    try:
        evaluated = _evaluate(contract, checks, snapshot, rows, scratch, quarantine_file, given, MEMORY_LIMITS[-1])
    except duckdb.OutOfMemoryException as error:
        raise out_of_memory(MEMORY_LIMITS[-1]) from error
    if evaluated.has_raised:
        refuse_unreadable(rows)
    return _receipt(contract, contract_file, given.suite_file, checks, snapshot, evaluated)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Evaluation:
    """Everything found out about the rows."""

    num_different: int | None
    quarantine: Quarantine
    excluded: StoredFile | None
    compared: DistributionComparison
    evidence: tuple[CheckEvidence, ...]
    """One for each check."""
    metrics: dict[str, float]
    freshness: tuple[FreshnessObservation, ...]
    baseline: ContractReceipt | None
    label: tuple[ExpectationVerdict, ...]
    """Of what the pipeline predicts; empty where it does not say."""

    @property
    def has_raised(self) -> bool:
        """Whether something was not evaluated, which a file that cannot be read may be the reason of."""
        return bool(self.quarantine.raised) or any(found.raised for found in self.evidence)

    @property
    def may_lack_memory(self) -> bool:
        """Whether something was not evaluated that more memory might let be. Great Expectations does not say why."""
        errors = {*self.quarantine.raised.values(), *(found.raised for found in self.evidence)}
        return not errors.isdisjoint({duckdb.OutOfMemoryException.__name__, GX_RAISED})


def _evaluate(
    contract: Contract,
    checks: Sequence[Check],
    snapshot: Snapshot,
    rows: RowsFiles,
    scratch: Path,
    quarantine_file: Path,
    given: ValidationContext,
    memory_limit: str,
) -> _Evaluation:
    # A contract without rules about change must not depend on what was accepted before.
    baseline = given.baseline if contract.needs_baseline else None
    # What DuckDB spills goes with the folder, whatever happens.
    with tempfile.TemporaryDirectory(prefix="validate-", dir=scratch) as folder:
        database = RowsDatabase(folder=Path(folder).resolve(), rows=rows, memory_limit=memory_limit)
        with database.connect() as connection:
            database.create_views(connection)
            if given.split is not None:
                register_split(connection, given.split)
            # Before anything is evaluated: a receipt names a snapshot, and must be about its rows.
            num_different = _num_different(connection, rows, snapshot)
            # Quarantine comes first: all other rules are about the rows that remain.
            quarantining = [check for check in checks if check.quarantine_rule]
            limit_ratio = contract.quarantine_limit_ratio
            quarantine = quarantine_rows(connection, database, quarantining, limit_ratio, given.states)
            excluded = write_quarantine(connection, quarantine, quarantine_file)
            # Rows that a rule could not quarantine this time are no ground for what is remembered.
            states = None if quarantine.raised else given.states
            tallies = Tallies(connection, database, is_quarantined=quarantine.num_quarantined > 0, states=states)
            given_suite = SuiteEvaluator(connection, tallies, checks, rows.columns)
            _count(tallies, checks, contract, rows, given_suite.figures)
            outcomes = _run_expectations(contract.name, checks, connection, rows, tallies)
            types = {name: column.type for name, column in contract.columns.items()}
            compared = compare_distributions(connection, tallies, checks, baseline, quarantine.num_remaining)
            return _Evaluation(
                num_different=num_different,
                quarantine=quarantine,
                excluded=excluded,
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
                label=() if given.label is None else evaluate_label(connection, given.label, dict(rows.columns)),
            )


def _receipt(
    contract: Contract,
    contract_file: StoredFile,
    suite_file: StoredFile | None,
    checks: Sequence[Check],
    snapshot: Snapshot,
    evaluated: _Evaluation,
) -> ContractReceipt:
    quarantine, baseline = evaluated.quarantine, evaluated.baseline
    verdicts = (
        snapshot_verdict(evaluated.num_different, len(snapshot.files)),
        quarantine_verdict(quarantine, contract.quarantine_limit_ratio),
        *([] if contract.quarantined_types is None else [unparsable_verdict(quarantine)]),
        *(verdict_of(check, found, quarantine) for check, found in zip(checks, evaluated.evidence, strict=True)),
        *evaluated.label,
    )
    return ContractReceipt(
        contract=contract_file,
        suite=suite_file,
        contract_name=contract.name,
        contract_version=contract.version,
        snapshot=snapshot.link,
        # The gate decides by severities; Great Expectations' own success does not know them.
        passed=is_accepted(verdicts),
        num_rows=quarantine.num_remaining,
        num_quarantined=quarantine.num_quarantined,
        quarantine=evaluated.excluded,
        verdicts=verdicts,
        metrics=evaluated.metrics,
        baseline=None if baseline is None else baseline.link,
        distributions=evaluated.compared.distributions,
        freshness=evaluated.freshness,
    )


def _num_different(connection: duckdb.DuckDBPyConnection, rows: RowsFiles, snapshot: Snapshot) -> int | None:
    """Files that are in the snapshot or in the rows and not in both, and files with another number of rows."""
    try:
        # One pass over file numbers alone, which Parquet keeps cheap.
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
        # Only types whose sums are exact in any order: others would differ by threads.
        if family(type_name) in SUMMED
    }


def _run_expectations(
    name: str, checks: Sequence[Check], connection: duckdb.DuckDBPyConnection, rows: RowsFiles, tallies: Tallies
) -> dict[str, ExpectationOutcome]:
    from headway.data_contracts.engine.duckdb_engine import ExpectationOutcome, evaluate_suite
    from headway.data_contracts.engine.suite import build_suite, expectation_checks

    asked = expectation_checks(checks)
    suite = build_suite(name, asked)
    try:
        outcomes = evaluate_suite(suite, connection, columns=rows.columns, tallies=tallies, checks=asked)
    except Exception:  # whatever it was, nothing was evaluated
        outcomes = {}
    unanswered = ExpectationOutcome(passed=False, raised=True)
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
