"""`headway contract check`: data held against a contract, without training; a workspace is read, if there is one."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from data_contracts.contract import Contract, load_contract
from data_contracts.digest_cache import DigestCache
from data_contracts.digests import sha256_bytes
from data_contracts.documents import ContractReceipt, ExpectationVerdict, Snapshot, StoredFile
from data_contracts.errors import ConfigError, ContractViolation
from data_contracts.freshness import judge_freshness
from data_contracts.given_suite import read_suite
from data_contracts.plain_text import one_line
from data_contracts.publication import Workspace
from data_contracts.report_quarantine import QuarantineSample, sample_quarantine
from data_contracts.source_guess import guess_source
from data_contracts.source_spec import SourceSpec
from data_contracts.sources import rows_files, take_snapshot
from data_contracts.verdicts import is_accepted, is_judged
from flows.console import plain_console
from flows.environment import default_workspace, project_folder
from flows.named_columns import require_named_columns
from flows.pipeline_spec import find_pipeline_file, load_pipeline
from flows.tables import print_table
from tasks.acceptance import baseline_of, refuse_broken_promise
from tasks.pipeline_label import pipeline_label
from tasks.pipeline_split import pipeline_split
from tasks.validate import read_contract
from training.data.spec import ShardSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
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
class Checked:
    contract: Contract
    snapshot: Snapshot
    receipt: ContractReceipt
    quarantine: QuarantineSample
    judged_now: tuple[ExpectationVerdict, ...]
    """Verdicts by the clock: how fresh the newest row is."""
    warning: str = ""
    """Why the contract could not be compared with the accepted one."""

    @property
    def verdicts(self) -> tuple[ExpectationVerdict, ...]:
        return (*self.receipt.verdicts, *self.judged_now)

    @property
    def passed(self) -> bool:
        return self.receipt.passed and is_accepted(self.judged_now)

    @property
    def exit_code(self) -> int:
        return 0 if self.passed else ContractViolation.exit_code

    def report(self) -> str:
        """The whole report, one HTML page."""
        from data_contracts.validation_report import render_html

        return render_html(self.receipt, self.contract, self.snapshot, self.quarantine, self.judged_now)

    def to_json(self) -> dict[str, Any]:
        """The verdicts for machines; names of rows, never values."""
        fields = {"contract_name", "contract_version", "num_rows", "num_quarantined", "metrics"}
        return {
            "passed": self.passed,
            "warning": self.warning or None,
            "verdicts": [
                {**verdict.model_dump(mode="json"), "judged": is_judged(verdict)} for verdict in self.verdicts
            ],
            **self.receipt.model_dump(mode="json", include=fields),
            "snapshot": self.snapshot.sha256,
            "num_files": len(self.snapshot.files),
            "num_quarantined_by_rule": self.quarantine.num_by_rule,
            "quarantined": [row._asdict() for row in self.quarantine.rows],
        }


def what_is_asked(target: str, data: str, workspace: str = "") -> Asked:
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
        return Asked(contract_file=here / target, source=guess_source(data, base=here).spec, base=here)
    path = find_pipeline_file(target, folder)
    _refuse_contract_alone(path, target)
    pipeline = load_pipeline(path)
    contract_file = path.parent / pipeline.contract
    require_named_columns(pipeline, load_contract(contract_file), path, judges_data_alone=True)
    return Asked(
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


def check(asked: Asked, *, now_unix_s: float) -> Checked:
    """Take a snapshot, judge it as the gate would, and forget everything but the verdicts.

    Raises:
        ConfigError: the contract cannot be read, or breaks what an accepted version promised.
        DataError: the data cannot.
    """
    contract, text = read_contract(asked.contract_file)
    suite, suite_text = read_suite(asked.contract_file, contract)
    workspace = Workspace(asked.workspace or default_workspace()) if asked.pipeline else None
    warning = ""
    if workspace is not None:
        where = str(asked.contract_file)
        warning = refuse_broken_promise(workspace, asked.pipeline, contract, suite, where=where)
    from data_contracts.validation import Surroundings, validate

    with tempfile.TemporaryDirectory(prefix="headway-check-") as name:
        scratch = Path(name)
        digests = DigestCache(scratch / "digests.json")
        snapshot = take_snapshot(
            asked.source,
            base=asked.base,
            cache=digests,
            texts=contract.texts,
            quarantined=contract.quarantined_types,
        )
        split = None if asked.shards is None else pipeline_split(asked.shards, snapshot.columns)
        baseline = None
        if workspace is not None and contract.needs_baseline:
            baseline = baseline_of(workspace, asked.pipeline, snapshot.link)
        suite_file = None if contract.suite is None else _named(contract.suite, suite_text)
        label = None if asked.shards is None else pipeline_label(asked.shards)
        surroundings = Surroundings(baseline=baseline, split=split, suite=suite, suite_file=suite_file, label=label)
        file = _named(asked.contract_file.name, text)
        left_out = scratch / "quarantine.parquet"
        with rows_files(asked.source, snapshot, scratch, base=asked.base, digests=digests) as rows:
            receipt = validate(
                contract, file, snapshot, rows, scratch, quarantine_file=left_out, surroundings=surroundings
            )
        sample = sample_quarantine(left_out) if receipt.quarantine else QuarantineSample()
    return Checked(
        contract=contract,
        snapshot=snapshot,
        receipt=receipt,
        quarantine=sample,
        judged_now=judge_freshness(receipt.freshness, now_unix_s),
        warning=warning,
    )


def _named(path: str, data: bytes) -> StoredFile:
    return StoredFile(path=path, size_bytes=len(data), sha256=sha256_bytes(data))


def print_checked(checked: Checked, console: Console | None = None, *, report: str = "") -> None:
    """One line of verdict, one table with what broke on top, and where the report lies.

    Args:
        report: its file; empty where none was written.
    """
    console = console or plain_console()
    receipt = checked.receipt
    word = Text("✔ passed", style="bold green") if checked.passed else Text("✖ REFUSED", style="bold red")
    rows, files = _count(receipt.num_rows, "row"), _count(len(checked.snapshot.files), "file")
    aside = f", {receipt.num_quarantined:,} set aside" if receipt.num_quarantined else ""
    console.print(word, f" {receipt.contract_name} {receipt.contract_version}   {rows} in {files}{aside}\n", sep="")
    table = Table("verdict", "rule", "expectation", "observed", box=None, padding=(0, 2, 0, 0))
    for verdict in sorted(checked.verdicts, key=_urgency):
        table.add_row(_mark(verdict), verdict.rule_id, verdict.description, verdict.observed)
    print_table(console, table)
    if checked.warning:
        console.print(Text(f"\n! {one_line(checked.warning)}", style="yellow"))
    where = report or "not written; `--report FILE` writes it, with a picture of every column"
    console.print(f"\nreport  {where}")


def _urgency(verdict: ExpectationVerdict) -> int:
    if verdict.passed:
        return 3 if is_judged(verdict) else 2
    return 0 if verdict.severity == "critical" else 1


def _mark(verdict: ExpectationVerdict) -> Text:
    if not is_judged(verdict):
        return Text("– not judged", style="yellow")
    if verdict.passed:
        return Text("✔ held", style="green")
    return (
        Text("✖ broken", style="red")
        if verdict.severity == "critical"
        else Text(f"! {verdict.severity}", style="yellow")
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
