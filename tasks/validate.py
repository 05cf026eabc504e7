"""Stage *validate*: hold the snapshot against its contract and hand on a receipt that names the exact bytes."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from data_contracts.contract import Contract, parse_contract
from data_contracts.digests import sha256_bytes
from data_contracts.documents import ContractReceipt, Link, Snapshot
from data_contracts.errors import ConfigError, ContractViolation
from data_contracts.sources import SourceSpec, write_table
from tasks.artifacts import artifact_key, show_table
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.stage import Made, find_or_make, stage_task

CODE = ("data_contracts.validation", "data_contracts.sources", "data_contracts.validation_report")


def read_contract(path: Path) -> tuple[Contract, bytes]:
    """The contract and its exact text.

    Raises:
        ConfigError: missing, or not a contract.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the contract cannot be read ({error.strerror}).", where=str(path), advice="Check `contract:`."
        ) from error
    return parse_contract(text.decode(errors="replace"), where=str(path)), text


def validate_inputs(context: RunContext, contract_file: str, snapshot: Link) -> dict[str, object]:
    _, text = read_contract(context.base / contract_file)
    return {
        "contract": sha256_bytes(text),
        "snapshot": snapshot.sha256,
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("duckdb", "great-expectations")},
    }


def report_path(receipt: Link) -> str:
    return f"reports/contract-{receipt.sha256[:16]}.html"


@stage_task(name="validate", task_run_name="validate {context.pipeline} against its contract")
def validate(context: RunContext, contract_file: str, source: SourceSpec, snapshot: Link) -> Link:
    """Run the contract; a receipt of a failure is kept as well, and refuses.

    Raises:
        ContractViolation: a critical expectation failed; the report says which, offline.
    """
    contract, text = read_contract(context.base / contract_file)
    inputs = validate_inputs(context, contract_file, snapshot)
    link = find_or_make(
        context,
        "validate",
        inputs,
        lambda: _run(context, contract, text, source, snapshot),
        shown=f"{contract.name} {contract.version}",
    )
    receipt = context.workspace.load(link, ContractReceipt)
    show_table(
        artifact_key(context.pipeline, "contract"), _rows(receipt), f"Contract {contract.name} {contract.version}"
    )
    if not receipt.passed:
        raise _violation(context, receipt)
    return link


def _run(context: RunContext, contract: Contract, text: bytes, source: SourceSpec, snapshot: Link) -> Made:
    from data_contracts.validation import validate as run_contract
    from data_contracts.validation_report import render_html

    workspace, ledger = context.workspace, context.ledger
    taken = workspace.load(snapshot, Snapshot)
    kept = workspace.publish_addressed(f"contracts/{sha256_bytes(text)}.yaml", text)
    table = context.scratch / "rows.parquet"
    with ledger.span("validate.table"):
        write_table(source, taken, table, base=context.base)
    with ledger.span("validate.expectations"):
        receipt = run_contract(contract, kept, taken, table, context.scratch)
    table.unlink()
    with ledger.span("validate.report"):
        page = render_html(receipt, contract, taken).encode()
        report = workspace.publish(report_path(receipt.link), page)
    return Made(document=receipt, files=(kept, report))


def _violation(context: RunContext, receipt: ContractReceipt) -> ContractViolation:
    failed = [verdict for verdict in receipt.verdicts if not verdict.passed and verdict.severity == "critical"]
    rules = "; ".join(f"{verdict.rule_id} ({verdict.observed})" for verdict in failed)
    return ContractViolation(
        f"the data break {receipt.contract_name} {receipt.contract_version}: {rules}.",
        where=f"snapshot {receipt.snapshot.sha256[:12]}",
        advice=f"Read {context.workspace.path(report_path(receipt.link))}; nothing was trained.",
    )


def _rows(receipt: ContractReceipt) -> list[dict[str, str]]:
    return [
        {
            "rule": verdict.rule_id,
            "expectation": verdict.description,
            "severity": verdict.severity,
            "verdict": "passed" if verdict.passed else "FAILED",
            "observed": verdict.observed,
        }
        for verdict in receipt.verdicts
    ]
