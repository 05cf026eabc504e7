"""Accounts of a workspace's flow runs: kept as `accounts/<run>/<flow run>.json`, made where one is missing.

A flow run makes its own when it ends. One that was killed could not: whoever looks next on its machine does.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError, HeadwayError
from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import parse_json
from headway.flows.accounts.flow_account import FORMAT_VERSION, FlowAccount, flow_account
from headway.flows.accounts.flow_ledgers import first_event, has_ended, is_of_this_machine, ledger_spool, living_flow
from headway.flows.accounts.goodput import Goodput, Life
from headway.flows.accounts.traces import FlowTrace, read_attempt, read_flow
from headway.training.launch.base.retry_budget import AttemptRecords

FOLDER = "accounts"
NO_RUN = "none"
"""The folder of flow runs that came to no run."""


def account_so_far(workspace: Workspace, flow_run: str) -> FlowAccount | None:
    """From the ledgers on this machine; None where there is no such ledger, or one of what no flow run can do."""
    flow = read_flow(ledger_spool(workspace, flow_run), flow_run)
    if flow is None:
        return None
    run_dirs = [workspace.local_path(f"runs/{run}") for run in flow.runs]
    runs = [
        [read_attempt(folder, record) for record in AttemptRecords(folder).in_scope(flow_run)] for folder in run_dirs
    ]
    # One that is damaged must not silence those of all others.
    with contextlib.suppress(ValidationError):
        return flow_account(flow, runs, _before(workspace, flow))
    return None


def keep_account(workspace: Workspace, flow_run: str) -> FlowAccount | None:
    """Make and keep the account of a flow run that is over; None where nothing of it is here.

    Raises:
        OSError, EnvironmentProblem: it cannot be kept.
    """
    account = account_so_far(workspace, flow_run)
    if account is not None:
        path = f"{FOLDER}/{account.run or NO_RUN}/{flow_run}.json"
        workspace.publish_json(path, account.model_dump(mode="json"))
    return account


def keep_quietly(workspace: Workspace, flow_run: str) -> None:
    """The same as a flow run's last act, which must not fail it: who looks for an account that is missing makes it."""
    try:
        keep_account(workspace, flow_run)
    except (OSError, HeadwayError):
        pass  # a store that is away; it has been reported by whoever needed it
    except Exception:
        logging.getLogger(__name__).exception("The account of flow run %s could not be made.", flow_run)


def kept_names(workspace: Workspace) -> dict[str, str]:
    """The files of all accounts that are kept, by flow run."""
    files = (PurePosixPath(file.path) for file in workspace.files(FOLDER))
    return {path.stem: str(path) for path in files if path.suffix == ".json" and len(path.parts) == 3}


def read_account(workspace: Workspace, path: str) -> FlowAccount | None:
    """None: it is damaged, gone, or of another version of Headway's."""
    with contextlib.suppress(HeadwayError, ValidationError, ValueError):
        data = workspace.read_if_there(path)
        account = None if data is None else FlowAccount.model_validate(parse_json(data))
        # One under another's name would count again at each look.
        if account is not None and (account.format_version, account.flow_run) == (
            FORMAT_VERSION,
            PurePosixPath(path).stem,
        ):
            return account
    return None


def _read_or_make(workspace: Workspace, path: str, before_unix_s: float = math.inf) -> FlowAccount | None:
    """One that is damaged is made again where its ledger is.

    Args:
        before_unix_s: one that began later is not made: accounts are made from those before them, and only those.
    """
    account, flow_run = read_account(workspace, path), PurePosixPath(path).stem
    if account is None and _begin_unix_s(workspace, flow_run) < before_unix_s:
        with contextlib.suppress(OSError, HeadwayError):
            account = keep_account(workspace, flow_run)
    return account


def _begin_unix_s(workspace: Workspace, flow_run: str) -> float:
    first = first_event(ledger_spool(workspace, flow_run))
    found = first.get("started_unix_s", first.get("unix_s"))
    return math.inf if found is None else float(found)


def settle(workspace: Workspace, without: Collection[str] = ()) -> list[str]:
    """Keep the accounts of flow runs that ended on this machine without one, oldest first.

    Args:
        without: flow runs whose accounts are known to be kept.

    Returns:
        Flow runs that go on here.
    """
    begun: list[tuple[float, str]] = []
    new = [folder for folder in entries(workspace.local_root / "ledger") if folder.name not in without]
    kept = kept_names(workspace) if new else {}
    for folder in new:
        if folder.name not in kept and (first := first_event(folder / "flow.jsonl")):
            begun.append((float(first["unix_s"]), folder.name))
    living = []
    for _, flow_run in sorted(begun):
        spool = ledger_spool(workspace, flow_run)
        if living_flow(spool) is not None:
            living.append(flow_run)
            continue
        # Where machines share a workspace, what has no end may go on at another.
        if not (is_of_this_machine(spool) or has_ended(spool)):
            continue
        # Who may only look at a workspace keeps nothing in it.
        with contextlib.suppress(OSError, HeadwayError):
            keep_account(workspace, flow_run)
    return living


def life_of(workspace: Workspace, run: str) -> Life:
    """All that is known of a run's life.

    Args:
        run: its id.

    Raises:
        ConfigError: nobody has tried to train it here.
    """
    return life_in(accounts_of(workspace, run))


def life_in(lived: Sequence[FlowAccount]) -> Life:
    """The life that these accounts of one run are of, oldest first."""
    return Life(
        run=lived[0].run,
        pipeline=lived[0].pipeline,
        is_over=lived[-1].has_registered,
        flows=[flow.goodput for flow in lived],
        steps_per_epoch=lived[-1].steps_per_epoch,
    )


def accounts_of(workspace: Workspace, run: str) -> Sequence[FlowAccount]:
    """Of the flow runs of its life, oldest first, one that goes on here among them.

    Raises:
        ConfigError: as `life_of`.
    """
    so_far = (account_so_far(workspace, flow_run) for flow_run in settle(workspace))
    flows = [*_kept_of(workspace, run), *(each for each in so_far if each is not None and each.run == run)]
    flows = flows or _by_begin(_within_searches(workspace, run))
    if not flows:
        raise ConfigError(
            "no ledger of a flow run that trained it is here.",
            where=run,
            advice="Ask on the machine that trained it; `headway status` shows what is known here.",
        )
    return _newest_life(flows)


def _within_searches(workspace: Workspace, run: str) -> Iterator[FlowAccount]:
    """Accounts of one run's part of flow runs that were at several, from their ledgers; none of them is kept."""
    folder = workspace.local_path(f"runs/{run}")
    records = AttemptRecords(folder).all()
    for flow_run in dict.fromkeys(record.scope for record in records):
        # What a record says could lead out of the folder.
        is_name = flow_run == PurePosixPath(flow_run).name and flow_run not in ("", "..")
        flow = read_flow(ledger_spool(workspace, flow_run), flow_run) if is_name else None
        if flow is None or run not in flow.runs:
            continue
        attempts = [read_attempt(folder, record) for record in records if record.scope == flow_run]
        with contextlib.suppress(ValidationError):
            yield flow_account(flow.while_at(run, attempts), [attempts], None)


def unfinished_life(workspace: Workspace, run: str) -> Sequence[FlowAccount]:
    """Kept accounts of a run that has not been registered yet, oldest first; what comes after that is another life."""
    lived = _newest_life(_kept_of(workspace, run))
    return () if not lived or lived[-1].has_registered else lived


def _kept_of(workspace: Workspace, run: str) -> list[FlowAccount]:
    """Oldest first."""
    names = workspace.names(f"{FOLDER}/{run}")
    read = (_read_or_make(workspace, f"{FOLDER}/{run}/{name}") for name in names)
    return _by_begin(account for account in read if account is not None)


def _by_begin(accounts: Iterable[FlowAccount]) -> list[FlowAccount]:
    return sorted(accounts, key=lambda account: account.begin_unix_s)


def _newest_life(flows: Sequence[FlowAccount]) -> Sequence[FlowAccount]:
    """Up to the flow run that registered the model. Later ones found it; one that trains it again begins a new life.

    Args:
        flows: of one run, oldest first.
    """
    life: list[FlowAccount] = []
    for flow in flows:
        is_over = bool(life) and life[-1].has_registered
        if is_over and not flow.figures.steps.num_steps:
            continue
        life = [flow] if is_over else [*life, flow]
    return life


def _before(workspace: Workspace, flow: FlowTrace) -> Goodput | None:
    """Of the run's flow run before this one; None of its first, and of one that found it registered."""
    if not flow.run:
        return None
    others = (name for name in workspace.names(f"{FOLDER}/{flow.run}") if name != f"{flow.flow_run}.json")
    read = [_read_or_make(workspace, f"{FOLDER}/{flow.run}/{name}", flow.begin_unix_s) for name in others]
    earlier = _by_begin(each for each in read if each is not None and each.begin_unix_s < flow.begin_unix_s)
    lived = _newest_life(earlier)
    return None if not lived or lived[-1].has_registered else lived[-1].goodput


def all_accounts(workspace: Workspace, without: Collection[str] = ()) -> Iterator[FlowAccount]:
    """Those that are kept, one at a time: a workspace may have ten thousand.

    Args:
        without: flow runs that are known already.
    """
    for flow_run, path in kept_names(workspace).items():
        if flow_run not in without and (account := _read_or_make(workspace, path)) is not None:
            yield account
