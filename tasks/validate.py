"""Stage *validate*: hold the snapshot against its contract and hand on a receipt that names the exact bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.contract import LABEL_LEAK, Contract, parse_contract
from data_contracts.digests import sha256_bytes, sha256_of
from data_contracts.documents import ContractReceipt, ExpectationVerdict, Link, Snapshot, StoredFile
from data_contracts.errors import ConfigError, ContractViolation
from data_contracts.file_states import load_states, save_states
from data_contracts.freshness import judge_freshness
from data_contracts.given_suite import read_suite
from data_contracts.sources import SourceSpec, rows_files
from data_contracts.split_sql import check_split_sql
from data_contracts.verdicts import is_accepted
from tasks.acceptance import accept, baseline_of, refuse_broken_promise
from tasks.artifacts import artifact_key, show_table
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.pages import contract_page, refusal_page
from tasks.pipeline_label import pipeline_label
from tasks.pipeline_split import pipeline_split
from tasks.promotion import LEAK_ADVICE
from tasks.stage import Made, find_or_make, stage_task
from training.data.spec import ShardSpec

if TYPE_CHECKING:
    from data_contracts.report_quarantine import QuarantineSample

CODE = ("data_contracts.validation", "data_contracts.sources", "data_contracts.validation_report")
LIBRARIES = ("duckdb", "great-expectations", "pyarrow")


def read_contract(path: Path) -> tuple[Contract, bytes]:
    """The contract and its exact text.

    Raises:
        ConfigError: missing, not a contract, or its SQL cannot be understood.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the contract cannot be read ({error.strerror}).", where=str(path), advice="Check `contract:`."
        ) from error
    contract = parse_contract(text.decode(errors="replace"), where=str(path))
    check_split_sql(contract, where=str(path))
    return contract, text


def validate_inputs(context: RunContext, contract_file: str, snapshot: Link, shards: ShardSpec) -> dict[str, object]:
    """Everything that decides the receipt. What a contract does not ask for is no input of its receipt."""
    path = context.base / contract_file
    contract, text = read_contract(path)
    _, suite = read_suite(path, contract)
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
        inputs["split"] = {"fields": shards.splitting, "code": code_version("tasks.pipeline_split")}
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
        ConfigError: the contract breaks what an accepted version promised.
        ContractViolation: a critical expectation failed, or the newest row is too old; the report says which, offline.
    """
    spec = shards or ShardSpec()
    path = context.base / contract_file
    contract, _ = read_contract(path)
    suite, _ = read_suite(path, contract)
    unread = refuse_broken_promise(context.workspace, context.pipeline, contract, suite, where=str(path))
    if unread:
        context.ledger.event("validate.accepted_unreadable", message=unread)
    link = receipt_of(context, contract_file, source, snapshot, spec)
    receipt = context.workspace.load(link, ContractReceipt)
    # The clock is no input of a receipt: the same one may pass today and be too old tomorrow.
    now_unix_s = time.time()
    fresh = judge_freshness(receipt.freshness, now_unix_s)
    show_table(
        artifact_key(context.pipeline, "contract"),
        _rows((*receipt.verdicts, *fresh)),
        f"Contract {contract.name} {contract.version}",
    )
    if not is_accepted(fresh):
        taken, sample = context.workspace.load(snapshot, Snapshot), _kept_sample(context, receipt)
        page = refusal_page(link, now_unix_s)
        _publish_report(context, page, receipt, contract, taken, sample, fresh)
        raise _violation(context, receipt, fresh, page)
    if not receipt.passed:
        raise _violation(context, receipt, fresh, contract_page(link))
    if (leak := label_leak(receipt)) is not None:
        context.ledger.event("validate.label_leak", message=f"{leak}. {LEAK_ADVICE}.")
    accept(context, link)
    return link


def label_leak(receipt: ContractReceipt) -> str | None:
    """Which input alone tells the label; None: none does, or nobody looked."""
    return next((each.observed for each in receipt.verdicts if each.rule_id == LABEL_LEAK and not each.passed), None)


def receipt_of(context: RunContext, contract_file: str, source: SourceSpec, snapshot: Link, shards: ShardSpec) -> Link:
    """What the contract says of a snapshot, found or made; it may be that it failed. Accepts nothing."""
    contract, text = read_contract(context.base / contract_file)
    return find_or_make(
        context,
        "validate",
        validate_inputs(context, contract_file, snapshot, shards),
        lambda: _run(context, contract_file, contract, text, source, snapshot, shards),
        shown=f"{contract.name} {contract.version}",
    )


def _run(
    context: RunContext,
    contract_file: str,
    contract: Contract,
    text: bytes,
    source: SourceSpec,
    snapshot: Link,
    shards: ShardSpec,
) -> Made:
    from data_contracts.report_quarantine import QuarantineSample, sample_quarantine
    from data_contracts.validation import Surroundings
    from data_contracts.validation import validate as run_contract

    workspace, ledger = context.workspace, context.ledger
    taken = workspace.load(snapshot, Snapshot)
    kept = workspace.publish_addressed(f"contracts/{sha256_bytes(text)}.yaml", text)
    files = [kept]
    suite, suite_text = read_suite(context.base / contract_file, contract)
    suite_file = None
    if suite_text:
        suite_file = workspace.publish_addressed(f"contracts/{sha256_bytes(suite_text)}.json", suite_text)
        files.append(suite_file)
    with tempfile.TemporaryDirectory(prefix="rows-", dir=context.scratch) as name:
        folder, left_out = Path(name), Path(name) / "quarantine.parquet"
        with contextlib.ExitStack() as proof:
            with ledger.span("validate.table"):
                rows = proof.enter_context(
                    rows_files(source, taken, folder, base=context.base, digests=context.digests)
                )
            states = None if rows.is_packed else load_states(workspace, rows, _basis(contract, taken))
            surroundings = Surroundings(
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
                    contract, kept, taken, rows, folder, quarantine_file=left_out, surroundings=surroundings
                )
        sample = QuarantineSample()
        if receipt.quarantine is not None:
            sample = sample_quarantine(left_out)
            files.append(workspace.publish_file(left_out, receipt.quarantine.path))
    if states is not None:
        save_states(workspace, states)
    files.append(_publish_report(context, contract_page(receipt.link), receipt, contract, taken, sample))
    return Made(document=receipt, files=tuple(files))


def _publish_report(
    context: RunContext,
    path: str,
    receipt: ContractReceipt,
    contract: Contract,
    taken: Snapshot,
    sample: QuarantineSample,
    fresh: tuple[ExpectationVerdict, ...] = (),
) -> StoredFile:
    """A page is written once. The receipt's own says nothing by the clock; what the clock refuses has its own page."""
    from data_contracts.validation_report import render_html

    with context.ledger.span("validate.report"):
        page = render_html(receipt, contract, taken, sample, fresh).encode()
        return context.workspace.publish(path, page)


def _kept_sample(context: RunContext, receipt: ContractReceipt) -> QuarantineSample:
    from data_contracts.report_quarantine import QuarantineSample, sample_quarantine

    if receipt.quarantine is None:
        return QuarantineSample()
    return sample_quarantine(BytesIO(context.workspace.read(receipt.quarantine.path)))


def _basis(contract: Contract, taken: Snapshot) -> str:
    """What decides a file's figures besides the file: how rows come out of it, which are set aside, code, libraries."""
    rules = [rule.model_dump(mode="json") for rule in contract.rules if rule.action == "quarantine"]
    types = {name: column.type for name, column in contract.columns.items()}
    libraries = {name: version(name) for name in LIBRARIES}
    reading = [taken.format, taken.options]
    code = {"code": code_version(*CODE), "libraries": libraries}
    return sha256_of({"contract": contract.name, "rules": rules, "types": types, "reading": reading, **code})


def _violation(
    context: RunContext, receipt: ContractReceipt, fresh: tuple[ExpectationVerdict, ...], page: str
) -> ContractViolation:
    judged = (*receipt.verdicts, *fresh)
    failed = [verdict for verdict in judged if not verdict.passed and verdict.severity == "critical"]
    rules = "; ".join(f"{verdict.rule_id} ({verdict.observed})" for verdict in failed)
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
            "observed": verdict.observed,
        }
        for verdict in verdicts
    ]
