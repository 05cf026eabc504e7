"""Stage *validate*: hold the snapshot against its contract and hand on a receipt that names the exact bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.engine.verdicts import is_accepted, with_first_row
from headway.data_contracts.rules.contract import LABEL_LEAK, LIKELY_LEAK, Contract
from headway.data_contracts.scans.file_states import load_states, save_states
from headway.data_contracts.scans.freshness import evaluate_freshness
from headway.data_contracts.sources.reading import SourceSpec, rows_files
from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import ContractReceipt, ExpectationVerdict, Link, Snapshot, StoredFile
from headway.data_contracts.store.errors import ContractViolation
from headway.data_contracts.store.installation import version
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.suites.contract_file import ContractFile, read_contract_file
from headway.data_contracts.types.report_text import count
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, look_up
from headway.tasks.core.pages import contract_page, refusal_page
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.registry.promotion import LEAK_ADVICE, LIKELY_LEAK_ADVICE
from headway.tasks.rows.acceptance import accept, baseline_of, refuse_breaking_change
from headway.tasks.rows.first_rows import leaks_in_first_rows, require_classes
from headway.tasks.rows.pipeline_split import pipeline_label, pipeline_split
from headway.tasks.stages.snapshot import place_path
from headway.training.config.shards import ShardSpec

if TYPE_CHECKING:
    from headway.data_contracts.report.quarantined_rows import QuarantineSample
    from headway.data_contracts.report.validation_report import PageLink

CODE = (
    "headway.data_contracts.engine.validation",
    "headway.data_contracts.sources.reading",
    "headway.data_contracts.report.validation_report",
)
LIBRARIES = ("duckdb", "great-expectations", "pyarrow")
PSI = ".psi"
"""How a receipt names the population stability index of a rule."""
MOST_RECORDED = 20
"""Rules that an event names: a contract may have thousands."""


def validate_inputs(context: RunContext, contract_file: str, snapshot: Link, shards: ShardSpec) -> dict[str, object]:
    """Everything that decides the receipt. What a contract does not ask for is no input of its receipt."""
    contract, text, _, suite = read_contract_file(context.base / contract_file)
    baseline = _baseline(context, contract, snapshot)
    inputs: dict[str, object] = {
        "contract": sha256_bytes(text),
        "snapshot": snapshot.sha256,
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in LIBRARIES},
    }
    if suite:
        inputs["suite"] = sha256_bytes(suite)
    if baseline is not None:
        inputs["baseline"] = baseline.sha256
    if contract.leakage:
        # Only rules on leakage look at the split: to change it makes no other receipt stale.
        inputs["split"] = {"fields": shards.splitting, "code": code_version("headway.tasks.rows.pipeline_split")}
    if (label := pipeline_label(shards)) is not None:
        inputs["label"] = dataclasses.asdict(label)
    return inputs


def _baseline(context: RunContext, contract: Contract, snapshot: Link) -> ContractReceipt | None:
    return baseline_of(context.workspace, context.pipeline, snapshot) if contract.needs_baseline else None


@stage_task(name="validate", task_run_name="validate {context.pipeline} against its contract")
def validate(
    context: RunContext, contract_file: str, source: SourceSpec, snapshot: Link, shards: ShardSpec | None = None
) -> Link:
    """Run the contract; a receipt of a failure is kept as well, and refuses.

    Args:
        shards: says which split a row is in, unless the contract does.

    Raises:
        ConfigError: the contract breaks what an accepted version promised, or the label to predict is no class.
        ContractViolation: a critical expectation failed, or the newest row is too old; the report says which, offline.
    """
    spec = shards or ShardSpec()
    taken = context.workspace.load(snapshot, Snapshot)
    contract = _required(context, contract_file, source, taken, spec)
    link = receipt_of(context, contract_file, source, snapshot, spec)
    receipt = context.workspace.load(link, ContractReceipt)
    # The clock is no input of a receipt: the same one may pass today and be too old tomorrow.
    now_unix_s = time.time()
    fresh = evaluate_freshness(receipt.freshness, now_unix_s)
    _record_verdicts(context, receipt, fresh)
    show_table(
        artifact_key(context.pipeline, "contract"),
        _rows((*receipt.verdicts, *fresh)),
        f"Contract {contract.name} {contract.version}",
    )
    if not is_accepted(fresh):
        sample = _kept_sample(context, receipt)
        page = refusal_page(link, now_unix_s)
        _publish_report(context, page, receipt, contract, taken, sample, fresh, now_unix_s)
        raise _violation(context, receipt, fresh, page)
    if not receipt.passed:
        raise _violation(context, receipt, fresh, contract_page(link))
    for leak, advice in label_leaks(receipt).items():
        context.ledger.event("validate.label_leak", message=f"{leak}. {advice}.")
    # Last: data that were refused must not become what later data are compared with.
    accept(context, link)
    return link


def outlook(context: RunContext, contract_file: str, source: SourceSpec, taken: Snapshot, shards: ShardSpec) -> Outlook:
    """With the leaks of the label that are on record, or that the first rows already show.

    Raises:
        ConfigError: as `validate`.
    """
    _required(context, contract_file, source, taken, shards)
    outlook = look_up(context, "validate", validate_inputs(context, contract_file, taken.link, shards))
    if outlook.document is None:
        return outlook.saying(leaks_in_first_rows(context, shards, source, taken))
    leaks = label_leaks(context.workspace.load(outlook.document, ContractReceipt))
    return outlook.model_copy(update={"detail": "; ".join((outlook.detail, *leaks))})


def _required(
    context: RunContext, contract_file: str, source: SourceSpec, taken: Snapshot, shards: ShardSpec
) -> Contract:
    """The contract, which takes nothing back, for data with a label that it can be asked of."""
    path = context.base / contract_file
    contract, _, suite, _ = read_contract_file(path)
    unread = refuse_breaking_change(context.workspace, context.pipeline, contract, suite, where=str(path))
    if unread:
        context.ledger.event("validate.accepted_unreadable", message=unread)
    require_classes(shards, source, taken, base=context.base, digests=context.digests)
    return contract


def label_leaks(receipt: ContractReceipt) -> dict[str, str]:
    """Which inputs alone tell the label, and which nearly do, each with what to do; empty too where nobody looked."""
    advice = {LABEL_LEAK: LEAK_ADVICE, LIKELY_LEAK: LIKELY_LEAK_ADVICE}
    found = (receipt.verdict(rule_id) for rule_id in advice)
    return {each.observed: advice[each.rule_id] for each in found if each is not None and not each.passed}


def _record_verdicts(context: RunContext, receipt: ContractReceipt, fresh: tuple[ExpectationVerdict, ...]) -> None:
    """For metrics and reports, whether the receipt was made or found, and before a violation ends the flow run."""
    broken: dict[str, list[str]] = {"critical": [], "warning": [], "info": []}
    for verdict in (*receipt.verdicts, *fresh):
        if not verdict.passed:
            broken[verdict.severity].append(verdict.rule_id)
    drift = {name.removesuffix(PSI): value for name, value in receipt.metrics.items() if name.endswith(PSI)}
    largest = sorted(drift.items(), key=lambda each: -each[1])[:MOST_RECORDED]
    context.ledger.event(
        "validate.verdicts",
        num_rows=receipt.num_rows,
        num_quarantined=receipt.num_quarantined,
        num_broken={severity: len(rules) for severity, rules in broken.items()},
        broken={severity: rules[:MOST_RECORDED] for severity, rules in broken.items()},
        drift={rule: value for rule, value in largest if math.isfinite(value)},
    )


def receipt_of(context: RunContext, contract_file: str, source: SourceSpec, snapshot: Link, shards: ShardSpec) -> Link:
    """What the contract says of a snapshot, found or made; it may be that it failed. Accepts nothing."""
    asked = read_contract_file(context.base / contract_file)
    return find_or_make(
        context,
        "validate",
        validate_inputs(context, contract_file, snapshot, shards),
        lambda: _run(context, asked, source, snapshot, shards),
        shown=f"{asked.contract.name} {asked.contract.version}",
    )


def _run(
    context: RunContext, asked: ContractFile, source: SourceSpec, snapshot: Link, shards: ShardSpec
) -> StageOutput:
    from headway.data_contracts.engine.validation import ValidationContext
    from headway.data_contracts.engine.validation import validate as run_contract
    from headway.data_contracts.report.quarantined_rows import QuarantineSample, sample_quarantine

    workspace, ledger = context.workspace, context.ledger
    contract, text, suite, suite_text = asked
    taken = workspace.load(snapshot, Snapshot)
    kept = workspace.publish_addressed(f"contracts/{sha256_bytes(text)}.yaml", text)
    files = [kept]
    suite_file = None
    if suite_text:
        suite_file = workspace.publish_addressed(f"contracts/{sha256_bytes(suite_text)}.json", suite_text)
        files.append(suite_file)
    with tempfile.TemporaryDirectory(prefix="rows-", dir=context.scratch) as name:
        folder, excluded = Path(name), Path(name) / "quarantine.parquet"
        with contextlib.ExitStack() as proof:
            with ledger.span("validate.table"):
                rows = proof.enter_context(
                    rows_files(source, taken, folder, base=context.base, digests=context.digests)
                )
            states = None if rows.is_packed else load_states(workspace, rows, _basis(contract, taken))
            surroundings = ValidationContext(
                baseline=_baseline(context, contract, snapshot),
                split=pipeline_split(shards, taken.columns),
                suite=suite,
                suite_file=suite_file,
                states=states,
                label=pipeline_label(shards),
            )
            with ledger.span("validate.expectations") as fields:
                fields["known_files"] = 0 if states is None else states.num_known_files
                receipt = run_contract(
                    contract, kept, taken, rows, folder, quarantine_file=excluded, surroundings=surroundings
                )
        sample = QuarantineSample()
        if receipt.quarantine is not None:
            sample = sample_quarantine(excluded)
            files.append(workspace.publish_file(excluded, receipt.quarantine.path))
    # After the contract has run, also where it failed: the next snapshot shares most of the files.
    if states is not None:
        save_states(workspace, states)
    files.append(_publish_report(context, contract_page(receipt.link), receipt, contract, taken, sample))
    return StageOutput(document=receipt, files=tuple(files))


def _publish_report(
    context: RunContext,
    path: str,
    receipt: ContractReceipt,
    contract: Contract,
    taken: Snapshot,
    sample: QuarantineSample,
    fresh: tuple[ExpectationVerdict, ...] = (),
    evaluated_unix_s: float | None = None,
) -> StoredFile:
    """A page is written once. The receipt's own says nothing by the clock; what the clock refuses has its own page."""
    from headway.data_contracts.report.validation_report import render_html

    with context.ledger.span("validate.report"):
        page = render_html(receipt, contract, taken, sample, fresh, page_links(receipt), evaluated_unix_s).encode()
        return context.workspace.publish(path, page)


def page_links(receipt: ContractReceipt) -> tuple[PageLink, ...]:
    """To what lies beside a receipt's page; by its documents alone, so that the page is the same whenever written."""
    from headway.data_contracts.report.validation_report import PageLink

    baseline, quarantine = receipt.baseline, receipt.quarantine
    return (
        PageLink("Source", f"../{place_path(receipt.snapshot)}", "where its files lay"),
        PageLink("Data", f"../{document_path(receipt.snapshot)}", f"files of {receipt.snapshot.short}"),
        PageLink("Contract text", f"../{receipt.contract.path}", f"{receipt.contract_name} {receipt.contract_version}"),
        *(
            []
            if quarantine is None
            else [PageLink("Rows left out", f"../{quarantine.path}", count(receipt.num_quarantined, "row"))]
        ),
        *(
            []
            if baseline is None
            else [PageLink("Compared with", contract_page(baseline).removeprefix("reports/"), baseline.short)]
        ),
        PageLink("Receipt", f"../{document_path(receipt.link)}", receipt.link.short),
        PageLink("Evaluations", "./", "reports of this workspace"),
    )


def _kept_sample(context: RunContext, receipt: ContractReceipt) -> QuarantineSample:
    from headway.data_contracts.report.quarantined_rows import QuarantineSample, sample_quarantine

    if receipt.quarantine is None:
        return QuarantineSample()
    return sample_quarantine(BytesIO(context.workspace.read(receipt.quarantine.path)))


def _basis(contract: Contract, taken: Snapshot) -> str:
    """What decides a file's figures besides the file: how it is read, what is quarantined, code, libraries."""
    rules = [rule.model_dump(mode="json") for rule in contract.rules if rule.action == "quarantine"]
    types = {name: column.type for name, column in contract.columns.items()}
    libraries = {name: version(name) for name in LIBRARIES}
    reading = [taken.format, taken.options]
    code = {"code": code_version(*CODE), "libraries": libraries}
    return sha256_of({"contract": contract.name, "rules": rules, "types": types, "reading": reading, **code})


def _violation(
    context: RunContext, receipt: ContractReceipt, fresh: tuple[ExpectationVerdict, ...], page: str
) -> ContractViolation:
    evaluated = (*receipt.verdicts, *fresh)
    failed = [verdict for verdict in evaluated if not verdict.passed and verdict.severity == "critical"]
    rules = "; ".join(f"{verdict.rule_id} ({with_first_row(verdict)})" for verdict in failed)
    return ContractViolation(
        f"the data break {receipt.contract_name} {receipt.contract_version}: {rules}.",
        where=f"snapshot {receipt.snapshot.sha256[:12]}",
        advice=f"Read {context.workspace.uri_of(page)}; nothing was trained.",
    )


def _rows(verdicts: tuple[ExpectationVerdict, ...]) -> list[dict[str, str]]:
    return [
        {
            "rule": verdict.rule_id,
            "expectation": verdict.description,
            "severity": verdict.severity,
            "verdict": "passed" if verdict.passed else "FAILED",
            "observed": with_first_row(verdict),
        }
        for verdict in verdicts
    ]
