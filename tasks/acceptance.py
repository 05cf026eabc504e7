"""The last accepted snapshot of a pipeline: what volume and drift are compared with, and which contract held."""

from __future__ import annotations

from data_contracts import refs
from data_contracts.compatibility import breaks_promise, compare, next_version
from data_contracts.contract import Contract, parse_contract
from data_contracts.documents import ContractReceipt, Link
from data_contracts.errors import ConfigError, HeadwayError, RefConflict
from data_contracts.publication import Workspace
from tasks.context import RunContext


def accepted_ref(pipeline: str) -> str:
    return f"accepted/{pipeline}"


def baseline_of(workspace: Workspace, pipeline: str, snapshot: Link) -> ContractReceipt | None:
    """The receipt of the newest accepted snapshot that is another one; None: there is none yet.

    The snapshot's own acceptance is no baseline, or judging it again would be another stage than judging it first.
    """
    name = accepted_ref(pipeline)
    newest = refs.current(workspace, name)
    if newest is None:
        return None
    receipt = workspace.load(newest.target, ContractReceipt)
    if receipt.snapshot != snapshot:
        return receipt
    for entry in reversed(refs.history(workspace, name)[:-1]):
        receipt = workspace.load(entry.target, ContractReceipt)
        if receipt.snapshot != snapshot:
            return receipt
    return None


def accept(context: RunContext, receipt: Link) -> None:
    """Make a receipt that passed the gate the one that the next snapshot is compared with."""
    name = accepted_ref(context.pipeline)
    newest = refs.current(context.workspace, name)
    if newest is not None and newest.target == receipt:
        return
    try:
        refs.move(context.workspace, name, receipt, expected=newest, reason="the data passed the gate")
    except RefConflict as error:
        # Another run of the pipeline accepted its snapshot at the same moment; either may be the next baseline.
        context.ledger.event("validate.not_accepted", message=str(error))


def check_compatible(context: RunContext, contract: Contract, *, where: str) -> None:
    """Refuse a contract that breaks what the accepted one promised without another major version.

    Raises:
        ConfigError: names the breaking changes, and the least version that announces them.
    """
    try:
        accepted = accepted_contract(context.workspace, context.pipeline)
    except (HeadwayError, OSError, ValueError) as error:
        # What cannot be read promises nothing; that it is damaged is for `verify` to say.
        context.ledger.event("validate.accepted_unreadable", message=str(error))
        return
    refuse_broken_promise(accepted, contract, where=where)


def refuse_broken_promise(accepted: Contract | None, contract: Contract, *, where: str) -> None:
    """Raises `ConfigError`, as `check_compatible` does."""
    if accepted is None or accepted.name != contract.name:
        return
    broken = breaks_promise(accepted, contract)
    if broken:
        raise ConfigError(
            f"version {contract.version} breaks what {accepted.version} accepted: "
            f"{'; '.join(change.sentence for change in broken)}.",
            where=where,
            advice=f"Call it version {next_version(accepted, compare(accepted, contract))}, or take the changes back.",
        )


def accepted_contract(workspace: Workspace, pipeline: str) -> Contract | None:
    """The contract that the newest accepted snapshot was held against; None: nothing is accepted yet.

    Raises:
        HeadwayError, OSError, ValueError: it cannot be read, or is damaged.
    """
    newest = refs.current(workspace, accepted_ref(pipeline))
    if newest is None:
        return None
    receipt = workspace.load(newest.target, ContractReceipt)
    workspace.verify(receipt.contract)
    return parse_contract(workspace.read(receipt.contract.path).decode(), where=receipt.contract.path)
