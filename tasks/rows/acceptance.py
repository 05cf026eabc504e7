"""The last accepted snapshot of a pipeline: what volume and drift are compared with, and which contract held."""

from __future__ import annotations

from typing import NamedTuple

from headway.data_contracts.changes.compatibility import Suites, breaks_promise, compare, next_version
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import ContractReceipt, Link, StoredFile
from headway.data_contracts.store.errors import ConfigError, HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.parsing import parse_suite
from headway.tasks.core.context import RunContext


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
    refs.ensure(context.workspace, accepted_ref(context.pipeline), receipt, reason="the data passed the gate")


class AcceptedContract(NamedTuple):
    """What a contract's version promised to those whose data it accepted."""

    contract: Contract
    suite: tuple[Check, ...] | None
    """None: receipts did not name suites then, and nobody knows what it asked."""


def refuse_breaking_change(
    workspace: Workspace, pipeline: str, contract: Contract, suite: tuple[Check, ...], *, where: str
) -> str:
    """Refuse a contract that breaks what the accepted one promised without another major version.

    Returns:
        Why the two could not be compared; empty where they were, or where nothing is accepted yet. What cannot be read
        promises nothing, and a person has to know.

    Raises:
        ConfigError: names the breaking changes, and the least version that announces them.
    """
    try:
        accepted = accepted_contract(workspace, pipeline)
    except (HeadwayError, OSError, ValueError) as error:
        return (
            f"the contract that the last data were accepted under cannot be read ({error}): whether version "
            f"{contract.version} breaks it is not known."
        )
    # A contract of another name promises nothing in the old one's place.
    if accepted is None or accepted.contract.name != contract.name:
        return ""
    before = accepted.contract
    suites = None if accepted.suite is None else Suites(accepted.suite, suite)
    broken = breaks_promise(before, contract, suites)
    if broken:
        raise ConfigError(
            f"version {contract.version} breaks what {before.version} accepted: "
            f"{'; '.join(change.sentence for change in broken)}.",
            where=where,
            advice=f"Call it version {next_version(before, compare(before, contract, suites))}, or take the changes "
            "back.",
        )
    return ""


def accepted_contract(workspace: Workspace, pipeline: str) -> AcceptedContract | None:
    """What the newest accepted snapshot was held against; None: nothing is accepted yet.

    Raises:
        HeadwayError, OSError, ValueError: it cannot be read, or is damaged.
    """
    newest = refs.current(workspace, accepted_ref(pipeline))
    if newest is None:
        return None
    receipt = workspace.load(newest.target, ContractReceipt)
    contract = parse_contract(_intact(workspace, receipt.contract).decode(), where=receipt.contract.path)
    if receipt.suite is not None:
        return AcceptedContract(contract, parse_suite(_intact(workspace, receipt.suite), where=receipt.suite.path))
    return AcceptedContract(contract, () if contract.suite is None else None)


def _intact(workspace: Workspace, file: StoredFile) -> bytes:
    workspace.verify(file)
    return workspace.read(file.path)
