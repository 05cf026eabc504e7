"""Ledgers of flow runs in a workspace: where each lies, and whether the process that writes it lives here."""

from __future__ import annotations

import socket
from pathlib import Path

from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.process_tree import ALREADY_DEAD, process_state
from headway.training.observe.ledger import Event, SpoolTail


def ledger_spool(workspace: Workspace, flow_run: str) -> Path:
    return workspace.local_path(f"ledger/{flow_run}/flow.jsonl")


def first_event(spool: Path) -> Event:
    """Empty: there is none."""
    return next(SpoolTail(spool).stream(), {})


def is_of_this_machine(spool: Path) -> bool:
    return bool(first_event(spool).get("host") == socket.gethostname())


def has_ended(spool: Path) -> bool:
    """Whether the flow run wrote its last word."""
    with open_regular(spool) as stream:
        # It is the last event: the end of a long file is enough to see it.
        stream.seek(max(stream.seek(0, 2) - 4096, 0))
        return b'"event":"flow.end"' in stream.read()


def living_flow(spool: Path) -> Event | None:
    """The first event of a flow run that goes on here; None of any other."""
    first = first_event(spool)
    if first.get("event") != "flow.begin" or not is_of_this_machine(spool) or has_ended(spool):
        return None
    # Where users share a workspace, a line may be anybody's; one that lacks this is none of ours.
    if any(first.get(field) is None for field in ("pid", "pipeline", "flow_run")):
        return None
    pid, ticks = int(first["pid"]), first.get("start_ticks")
    return first if process_state(pid) not in ALREADY_DEAD and start_ticks(pid) == ticks else None


def start_ticks(pid: int) -> int | None:
    """When the kernel started a process, in ticks since boot: with its number, its identity. None when it is gone."""
    try:
        # The second field, the program's name in brackets, may hold spaces and brackets; the start is the 22nd.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
