"""Ledgers of a flow run, read for its trace: its own, and those of the ranks of its attempts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.flow_ledgers import has_ended, is_of_this_machine, ledger_spool, living_flow
from headway.flows.accounts.traces import FlowTrace, read_flow
from headway.flows.tracing.spans import MAX_SPANS, RankEvents, Trace, trace_of
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.observe.ledger import Event, SpoolTail

UNREAD = ("step", "step.excluded", "heartbeat")
"""What no span is made of: nearly all of a long run's ledgers."""


def read_trace(workspace: Workspace, flow_run: str, max_bytes: float = math.inf) -> Trace | None:
    """None: no such ledger is here.

    Args:
        max_bytes: of ranks' ledgers that are read, in half a second for each 200 MB; the trace counts the others.
    """
    spool = ledger_spool(workspace, flow_run)
    flow = read_flow(spool, flow_run)
    if flow is None:
        return None
    ranks: list[RankEvents] = []
    num_unread, num_bytes, num_events = 0, 0, 0
    for folder, rank, ledger in _rank_ledgers(flow):
        num_bytes += _size_bytes(ledger)
        if num_bytes > max_bytes or num_events > 4 * MAX_SPANS:
            num_unread += 1
            continue
        ranks.append(RankEvents(folder=folder, rank=rank, events=tuple(_events(ledger))))
        num_events += len(ranks[-1].events)
    return trace_of(flow, ranks, is_at_work=living_flow(spool) is not None, num_unread=num_unread)


def killed_before(workspace: Workspace, flow_run: str) -> str:
    """The flow run that had the run just before this one, where it was killed on this machine; empty: none was."""
    flow = read_flow(ledger_spool(workspace, flow_run), flow_run)
    if flow is None or not flow.run:
        return ""
    scopes = [record.scope for record in AttemptRecords(workspace.local_path(f"runs/{flow.run}")).all()]
    before = scopes[: scopes.index(flow_run)] if flow_run in scopes else scopes
    # A scope names a folder, in a record that lies where others may write.
    if not before or before[-1] in ("", "..") or before[-1] != Path(before[-1]).name:
        return ""
    spool = ledger_spool(workspace, before[-1])
    is_killed = spool.is_file() and is_of_this_machine(spool) and not has_ended(spool) and living_flow(spool) is None
    return before[-1] if is_killed else ""


def _rank_ledgers(flow: FlowTrace) -> Iterator[tuple[str, int, Path]]:
    """Folder of the attempt, rank, and where it wrote: rank 0 of every attempt first, for it speaks for all."""
    begun = (str(event.get("folder", "")) for event in flow.events if event["event"] in ("attempt.begin", "attempt"))
    folders = list(dict.fromkeys(filter(None, begun)))
    found: list[tuple[int, int, str, Path]] = []
    for place, folder in enumerate(folders):
        with contextlib.suppress(OSError, ValueError):  # of a path that none of ours is
            for path in entries(AttemptFiles(Path(folder)).rank_spool(0).parent):
                _, is_ranks, number = path.stem.partition("rank-")
                if is_ranks and path.suffix == ".jsonl" and number.isascii() and number.isdecimal():
                    found.append((int(number), place, folder, path))
    for rank, _, folder, path in sorted(found, key=lambda each: each[:2]):
        yield folder, rank, path


def _size_bytes(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _events(ledger: Path) -> Iterator[Event]:
    """What can be read of it: a trace of a damaged one is better than none."""
    with contextlib.suppress(OSError):
        yield from SpoolTail(ledger).stream(without=UNREAD)
