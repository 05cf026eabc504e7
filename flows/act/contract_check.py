"""`headway contract check`: data held against a contract, without training; a workspace is read, if there is one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.data_contracts.engine.verdicts import NOT_EVALUATED, is_accepted, is_evaluated, with_first_row
from headway.data_contracts.report.quarantined_rows import QuarantineSample, sample_quarantine
from headway.data_contracts.rules.contract import Contract, load_contract
from headway.data_contracts.scans.freshness import evaluate_freshness
from headway.data_contracts.sources.inference import guess_source
from headway.data_contracts.sources.reading import rows_files, take_snapshot
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import ContractReceipt, ExpectationVerdict, Snapshot, StoredFile
from headway.data_contracts.store.errors import ConfigError, ContractViolation
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.types.report_text import count
from headway.flows.config.named_columns import require_named_columns
from headway.flows.config.pipeline_spec import find_pipeline_file, load_pipeline
from headway.flows.console.console import plain_console, print_table
from headway.flows.console.environment import default_workspace, project_folder
from headway.tasks.rows.acceptance import baseline_of, refuse_breaking_change
from headway.tasks.rows.first_rows import require_classes, require_enough_rows
from headway.tasks.rows.pipeline_split import pipeline_label, pipeline_split
from headway.tasks.stages.validate import label_leaks
from headway.training.config.shards import ShardSpec

MOST_UNEVALUATED = 5
"""Rules that compare with an accepted snapshot where there is none: more of them are named in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRequest:
    """What is to be held against what."""

    contract_file: Path
    source: SourceSpec
    base: Path
    shards: ShardSpec | None = None
    """Says which split a row is in, unless the contract does."""
    pipeline: str = ""
    """Whose accepted snapshot and contract are compared with; empty: nobody's."""
    workspace: str = ""
    """Where those are kept; empty: where every command looks by default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    contract: Contract
    snapshot: Snapshot
    receipt: ContractReceipt
    quarantine: QuarantineSample
    evaluated_now: tuple[ExpectationVerdict, ...]
    """Verdicts by the clock: how fresh the newest row is."""
    warning: str = ""
    """Why the contract could not be compared with the accepted one."""

    @property
    def verdicts(self) -> tuple[ExpectationVerdict, ...]:
        return (*self.receipt.verdicts, *self.evaluated_now)

    @property
    def passed(self) -> bool:
        return self.receipt.passed and is_accepted(self.evaluated_now)

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else ContractViolation.exit_code

    def report(self) -> str:
        """The whole report, one HTML page."""
        from headway.data_contracts.report.validation_report import render_html

        return render_html(self.receipt, self.contract, self.snapshot, self.quarantine, self.evaluated_now)

    def to_json(self) -> dict[str, Any]:
        """The verdicts for machines; names of rows, never values."""
        fields = {"contract_name", "contract_version", "num_rows", "num_quarantined", "metrics"}
        return {
            "passed": self.passed,
            "warning": self.warning or None,
            "verdicts": [
                {**verdict.model_dump(mode="json"), "evaluated": is_evaluated(verdict)} for verdict in self.verdicts
            ],
            **self.receipt.model_dump(mode="json", include=fields),
            "snapshot": self.snapshot.sha256,
            "num_files": len(self.snapshot.files),
            "num_quarantined_by_rule": self.quarantine.num_by_rule,
            "quarantined": [row._asdict() for row in self.quarantine.rows],
        }


def resolve_request(target: str, data: str, workspace: str = "") -> CheckRequest:
    """A pipeline file alone, or a contract and the data to hold against it.

    Args:
        workspace: goes with a pipeline file.

    Raises:
        ConfigError: no such file, or not what it should be.
        DataError: there are no data.
    """
    folder = project_folder()
    if data and workspace:
        raise ConfigError(
            "goes with a pipeline file, which says whose accepted data are meant.",
            where="--workspace",
            advice=f"Check the pipeline, or leave it out: headway contract check {target} {data}.",
        )
    if data:
        here = Path.cwd()
        return CheckRequest(contract_file=here / target, source=guess_source(data, base=here).spec, base=here)
    path = find_pipeline_file(target, folder)
    _refuse_contract_alone(path, target)
    pipeline = load_pipeline(path)
    contract_file = path.parent / pipeline.contract
    require_named_columns(pipeline, read_contract_file(contract_file).contract, path, is_data_only=True)
    return CheckRequest(
        contract_file=contract_file,
        source=pipeline.source,
        base=path.parent,
        shards=pipeline.shards,
        pipeline=pipeline.pipeline,
        workspace=workspace,
    )


def _refuse_contract_alone(path: Path, target: str) -> None:
    """A pipeline file names its source; a contract does not."""
    try:
        load_contract(path)
    except ConfigError:
        return
    raise ConfigError(
        "is a contract, not a pipeline file.",
        where=target,
        advice=f"Give the data, too: headway contract check {target} DATA.",
    )


def check(request: CheckRequest, *, now_unix_s: float) -> CheckResult:
    """Take a snapshot, evaluate it as the gate would, and forget everything but the verdicts.

    Raises:
        ConfigError: the contract cannot be read, or breaks what an accepted version promised; the label is no class.
        DataError: the data cannot, or they hold the contract and are too few to train and evaluate on.
    """
    contract, text, suite, suite_text = read_contract_file(request.contract_file)
    workspace = Workspace(request.workspace or default_workspace()) if request.pipeline else None
    warning = ""
    if workspace is not None:
        where = str(request.contract_file)
        warning = refuse_breaking_change(workspace, request.pipeline, contract, suite, where=where)
    from headway.data_contracts.engine.validation import ValidationContext, validate

    with tempfile.TemporaryDirectory(prefix="headway-check-") as name:
        scratch = Path(name)
        digests = DigestCache(scratch / "digests.json")
        snapshot = take_snapshot(
            request.source,
            base=request.base,
            cache=digests,
            texts=contract.texts,
            quarantined=contract.quarantined_types,
        )
        if request.shards is not None:
            require_classes(request.shards, request.source, snapshot, base=request.base, digests=digests)
        split = None if request.shards is None else pipeline_split(request.shards, snapshot.columns)
        baseline = None
        if workspace is not None and contract.needs_baseline:
            baseline = baseline_of(workspace, request.pipeline, snapshot.link)
        suite_file = None if contract.suite is None else _named(contract.suite, suite_text)
        label = None if request.shards is None else pipeline_label(request.shards)
        surroundings = ValidationContext(
            baseline=baseline, split=split, suite=suite, suite_file=suite_file, label=label
        )
        file = _named(request.contract_file.name, text)
        excluded = scratch / "quarantine.parquet"
        with rows_files(request.source, snapshot, scratch, base=request.base, digests=digests) as rows:
            receipt = validate(
                contract, file, snapshot, rows, scratch, quarantine_file=excluded, surroundings=surroundings
            )
        if request.shards is not None and receipt.passed:  # else the verdicts are what a person needs
            require_enough_rows(request.shards, request.source, snapshot, base=request.base, digests=digests)
        sample = sample_quarantine(excluded) if receipt.quarantine else QuarantineSample()
    return CheckResult(
        contract=contract,
        snapshot=snapshot,
        receipt=receipt,
        quarantine=sample,
        evaluated_now=evaluate_freshness(receipt.freshness, now_unix_s),
        warning=warning,
    )


def _named(path: str, data: bytes) -> StoredFile:
    return StoredFile(path=path, size_bytes=len(data), sha256=sha256_bytes(data))


def print_checked(checked: CheckResult, console: Console | None = None, *, report: str = "") -> None:
    """One line of verdict, one table with what broke on top, and where the report lies.

    Args:
        report: its file; empty where none was written.
    """
    console = console or plain_console()
    receipt = checked.receipt
    num_warnings = sum(not verdict.passed and verdict.severity != "critical" for verdict in checked.verdicts)
    warned = f", {count(num_warnings, 'warning')}" if num_warnings else ""
    word = Text("✔ passed", style="bold green") if checked.passed else Text("✖ REFUSED", style="bold red")
    rows, files = count(receipt.num_rows, "row"), count(len(checked.snapshot.files), "file")
    suffix = f", {receipt.num_quarantined:,} quarantined" if receipt.num_quarantined else ""
    console.print(
        word, f" {receipt.contract_name} {receipt.contract_version}{warned}   {rows} in {files}{suffix}\n", sep=""
    )
    table = Table("verdict", "rule", "expectation", "observed", box=None, padding=(0, 2, 0, 0))
    waiting = [verdict for verdict in checked.verdicts if not is_evaluated(verdict)]
    # A wide table has one for each column, which would push out of sight what broke and what held.
    is_folded = len(waiting) > MOST_UNEVALUATED
    for verdict in sorted(checked.verdicts, key=_urgency):
        if is_folded and not is_evaluated(verdict):
            continue
        table.add_row(_mark(verdict), verdict.rule_id, verdict.description, with_first_row(verdict))
    print_table(console, table)
    if is_folded:
        names = f"{waiting[0].rule_id}, {waiting[1].rule_id} and {len(waiting) - 2} more"
        console.print(Text(f"\n– {NOT_EVALUATED}, for {names}: a retrain accepts the first one", style="yellow"))
    for leak, advice in label_leaks(receipt).items():
        console.print(Text(f"\n! {leak}. {advice}.", style="yellow"))
    if checked.warning:
        console.print(Text(f"\n! {one_line(checked.warning)}", style="yellow"))
    where = report or "not written; `--report FILE` writes it, with a picture of every column"
    console.print(f"\nreport  {where}")


def _urgency(verdict: ExpectationVerdict) -> int:
    if verdict.passed:
        return 3 if is_evaluated(verdict) else 2
    return 0 if verdict.severity == "critical" else 1


def _mark(verdict: ExpectationVerdict) -> Text:
    if not is_evaluated(verdict):
        return Text("– not evaluated", style="yellow")
    if verdict.passed:
        return Text("✔ held", style="green")
    return (
        Text("✖ broken", style="red")
        if verdict.severity == "critical"
        else Text(f"! {verdict.severity}", style="yellow")
    )
