"""Making the newest claim on a run, as soon as that may be.

A claim that is over, or was made on this machine by a process that is gone, is followed by the next at once; any other
is watched, and followed when its beat has not changed for its lease. No two clocks are compared: what counts is how
long the watcher itself has seen no news.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from typing import NamedTuple

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import EnvironmentProblem, RunBusy
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.core.lease_records import LeaseRecord, LeaseRecords

POLLS_PER_LEASE = 30
"""In a lease, of who waits for its end; seldom more than one in `POLL_S`."""
POLL_S = 2.0
MAX_LEASES = 10
"""How many leases long a claim is watched."""


class ObservedLease(NamedTuple):
    """A run's newest claim, as it was found some time ago."""

    number: int
    beat: bytes | None
    at_s: float
    """By the monotonic clock."""


def observe_lease(workspace: Workspace, run: Link) -> ObservedLease | None:
    """For whoever claims many runs, one after another: silences at one time need not be waited for in turn."""
    if workspace.is_local:
        return None
    records = LeaseRecords(workspace, run.sha256[:16])
    number = records.newest()
    return ObservedLease(number, records.beat(number), time.monotonic()) if number else None


def acquire_lease(context: RunContext, records: LeaseRecords, lease_s: float, seen: ObservedLease | None) -> int:
    """Make the newest claim, which needs this machine's lock on the run.

    Args:
        lease_s: how long its silence has to be borne.
        seen: the newest so far, if anybody has looked before.

    Returns:
        Its number.

    Raises:
        RunBusy: another process has the run; the message names it.
        EnvironmentProblem: the store is too slow to tell.
        RunStopped: the time was over before that could be told.
        IntegrityError: the newest claim cannot be read.
    """
    while True:
        number, ours = records.newest(), []
        if number and not records.is_over(number):
            try:
                newest = records.read(number)
            except FileNotFoundError:  # cleaned away meanwhile
                context.require_time("training")
                time.sleep(POLL_S)
                continue
            ours = [each for each in records.writers_here() if each == newest.writer]
            # Made on this machine: we hold its lock, so whoever made it is gone.
            if not ours and not _is_silent(context, records, number, newest, seen):
                continue
        own = LeaseRecord(
            host=socket.gethostname(), pid=os.getpid(), unix_s=time.time(), lease_s=lease_s, writer=uuid.uuid4().hex
        )
        # Before the claim itself, and beside the one that was ours: killed in between, this machine knows the newest.
        records.write_down_writers([*ours, own.writer])
        # Another machine was faster: its claim is the newest now, and is watched like any other.
        with contextlib.suppress(FileExistsError):
            records.make(number + 1, own)
            return number + 1


def _is_silent(
    context: RunContext, records: LeaseRecords, number: int, lease: LeaseRecord, seen: ObservedLease | None
) -> bool:
    """Watch another machine's claim: True when its lease is over, False when there is no need to wait for that.

    Raises:
        EnvironmentProblem: it is renewed, or the store is too slow to tell.
    """
    workspace, run = records.workspace, records.run
    beat = records.beat(number)
    message = f"run {run} was claimed by {lease}: whether that is gone is known in {lease.lease_s:g} s"
    context.ledger.event("run.leased_remotely", run=run, message=message)
    started_s = since_s = looked_s = time.monotonic()
    if seen is not None and (seen.number, seen.beat) == (number, beat):
        since_s = seen.at_s
    while looked_s - since_s < lease.lease_s:
        context.require_time("training")
        if looked_s - started_s > MAX_LEASES * lease.lease_s:
            raise EnvironmentProblem(
                f"whether {lease} still trains this run is unknown: the store is away, or too slow.",
                where=workspace.uri,
                advice="Check the network and the store, and run again.",
            )
        time.sleep(min(POLL_S, lease.lease_s / POLLS_PER_LEASE))
        if records.is_over(number) or records.is_there(number + 1):
            return False
        if records.beat(number) != beat:
            raise RunBusy(
                f"another machine trains this run already ({lease}).",
                where=workspace.uri_of(records.path(number)),
                advice=f"The same command with `--wait` waits for it; `headway stop {run}` on that machine ends it.",
            )
        last_s, looked_s = looked_s, time.monotonic()
        if looked_s - last_s > lease.lease_s / 2:
            since_s = looked_s  # the store was away, or this process halted: so the other's news may be, too
    return True
