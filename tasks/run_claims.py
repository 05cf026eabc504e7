"""Claims on runs: of all machines that share a workspace in object storage, one at a time has a run.

    owners/<run>/<n>.json    claim n: which process on which host, and how long its silence has to be borne
    owners/<run>/<n>.beat    rewritten for as long as the process that made claim n lives
    owners/<run>/<n>.over    the claim was given up in order

As with refs, creating claim n exclusively is the compare-and-set, and whoever made the newest has the run. A claim that
is over, or was made on this machine by a process that is gone, is followed by the next at once; any other is watched,
and followed when its beat has not changed for its lease. No two clocks are compared: what counts is how long the
watcher itself has seen no news.

A process that finds a newer claim than its own has lost the run: it stops its ranks in order and publishes nothing more
of it. One that cannot reach the store goes on, for however long: nothing of what it makes leaves its machine before it
has looked who has the run. Only what it was publishing in the very moment in which it was halted, it completes.

A workspace in a folder needs none of this: machines that share it share the lock in the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from data_contracts.digests import canonical_json
from data_contracts.documents import Frozen, Link
from data_contracts.errors import EnvironmentProblem, HeadwayError, IntegrityError, RunStopped, Superseded
from data_contracts.folder_store import Listed
from data_contracts.object_store import Patience
from data_contracts.publication import Workspace
from data_contracts.refs import entry_path, newest_entry, number_of
from tasks.context import RunContext
from training.checkpoint.layout import run_folder
from training.launch.order import DetachedFiles
from training.launch.protocol import read_json, write_json
from training.launch.run_lock import owning
from training.launch.spec import LaunchSpec
from training.launch.stop_request import request_stop, requested_stop
from training.ledger import Ledger

OWNERS = "owners"
HERE = "claim"
"""The folder, in a run's own on this machine, of the lock and of which claims were made under it."""
WRITERS = "writers.json"
BEATS = 6
"""In a lease."""
LOOKS = 30
"""In a lease, of who waits for its end; seldom more than one in `LOOK_S`."""
LOOK_S = 2.0
MOST_LEASES = 10
"""How many leases long a claim is watched."""
GIVE_UP_WITHIN_S = 5.0
"""For saying that a claim is over: a flow that was cancelled has little time."""
JOINED_WITHIN_S = 1.0
"""A beat that a store lets hang holds nobody up."""
FORGOTTEN_S = 86400.0
"""After which a claim that is not over, and gives no sign of life, keeps nothing from being cleaned away."""


class Claim(Frozen):
    format_version: int = 1
    host: str
    pid: int
    unix_s: float
    lease_s: float
    writer: str
    """Made up anew for every claim: no two writers write the same bytes, and each knows its own again."""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.unix_s, UTC).isoformat(timespec="seconds")
        return f"pid {self.pid} on {self.host} since {since}"


def _folder(run: str) -> str:
    return f"{OWNERS}/{run}"


def _beat_path(run: str, number: int) -> str:
    return f"{_folder(run)}/{number:08d}.beat"


def _over_path(run: str, number: int) -> str:
    return f"{_folder(run)}/{number:08d}.over"


def _read(workspace: Workspace, run: str, number: int) -> Claim:
    where = entry_path(_folder(run), number)
    try:
        return Claim.model_validate_json(workspace.read(where))
    except ValidationError as error:
        raise IntegrityError(
            "not a claim that this version of Headway reads.",
            where=where,
            advice=f"If no machine trains run {run}, remove the file, and every later one beside it.",
        ) from error


class Seen(NamedTuple):
    """A run's newest claim, as it was found some time ago."""

    number: int
    beat: bytes | None
    at_s: float
    """By the monotonic clock."""


def see_claim(workspace: Workspace, run: Link) -> Seen | None:
    """For whoever claims many runs, one after another: silences at one time need not be waited for in turn."""
    if workspace.is_local:
        return None
    name = run.sha256[:16]
    number = newest_entry(workspace, _folder(name))
    return Seen(number, workspace.read_if_there(_beat_path(name, number)), time.monotonic()) if number else None


@contextlib.contextmanager
def claimed_run(context: RunContext, run: Link, spec: LaunchSpec, seen: Seen | None = None) -> Iterator[RunClaim]:
    """Have a run to oneself while the body runs, among all machines; does nothing where the workspace is a folder.

    Args:
        seen: its newest claim, if anybody has looked before.

    Raises:
        EnvironmentProblem: another process has it; the message names it.
        RunStopped: the time was over before that could be told.
        IntegrityError: the newest claim cannot be read.
    """
    workspace, name = context.workspace, run.sha256[:16]
    claim = RunClaim(workspace, name, workspace.local_path(run_folder(run)), context.ledger)
    if workspace.is_local:
        yield claim
        return
    folder = workspace.local_path(run_folder(run)) / HERE
    folder.mkdir(parents=True, exist_ok=True)
    # A job goes on for a while without the flow that has claimed its run.
    lease_s = spec.owner_lease_s + (spec.detached.lease_s + spec.stop_grace_s if spec.is_detached else 0.0)
    with owning(folder, name):
        with context.ledger.span("launch.claim"):
            number = _take(context, name, folder, lease_s, seen)
        is_over = not spec.is_detached
        try:
            claim.renew(number, spec.owner_lease_s / BEATS)
            yield claim
            is_over = True
        except RunStopped:
            is_over = True
            raise
        finally:
            claim.end(is_over or _has_no_job(folder.parent))


def _has_no_job(run_dir: Path) -> bool:
    """Whether a detached run has come to the end of its job, or to none: its order is written down before."""
    files = DetachedFiles(run_dir)
    return files.outcome.exists() or not files.order.exists()


def _take(context: RunContext, run: str, folder: Path, lease_s: float, seen: Seen | None) -> int:
    """Make the newest claim, as soon as that may be; returns its number."""
    workspace = context.workspace
    while True:
        number, ours = newest_entry(workspace, _folder(run)), []
        if number and not workspace.exists(_over_path(run, number)):
            try:
                newest = _read(workspace, run, number)
            except FileNotFoundError:  # cleaned away meanwhile
                context.require_time("training")
                time.sleep(LOOK_S)
                continue
            ours = [each for each in _writers_here(folder) if each == newest.writer]
            # Made on this machine: we hold its lock, so whoever made it is gone.
            if not ours and not _is_silent(context, run, number, newest, seen):
                continue
        own = Claim(
            host=socket.gethostname(), pid=os.getpid(), unix_s=time.time(), lease_s=lease_s, writer=uuid.uuid4().hex
        )
        # Before the claim itself, and beside the one that was ours: killed in between, this machine knows the newest.
        write_json(folder / WRITERS, {"writers": [*ours, own.writer]})
        with contextlib.suppress(FileExistsError):
            workspace.publish(entry_path(_folder(run), number + 1), canonical_json(own.model_dump()), exclusive=True)
            return number + 1


def _writers_here(folder: Path) -> list[str]:
    """Of claims that were made on this machine."""
    return list((read_json(folder / WRITERS) or {}).get("writers", ()))


def _is_silent(context: RunContext, run: str, number: int, claim: Claim, seen: Seen | None) -> bool:
    """Watch another machine's claim: True when its lease is over, False when there is no need to wait for that.

    Raises:
        EnvironmentProblem: it is renewed, or the store is too slow to tell.
    """
    workspace = context.workspace
    beat = workspace.read_if_there(_beat_path(run, number))
    told = f"run {run} was claimed by {claim}: whether that is gone is known in {claim.lease_s:g} s"
    context.ledger.event("run.claimed_elsewhere", run=run, message=told)
    began_s = since_s = looked_s = time.monotonic()
    if seen is not None and (seen.number, seen.beat) == (number, beat):
        since_s = seen.at_s
    while looked_s - since_s < claim.lease_s:
        context.require_time("training")
        if looked_s - began_s > MOST_LEASES * claim.lease_s:
            raise EnvironmentProblem(
                f"whether {claim} still trains this run cannot be told: the store is away, or too slow.",
                where=workspace.uri,
                advice="Check the network and the store, and run again.",
            )
        time.sleep(min(LOOK_S, claim.lease_s / LOOKS))
        later = entry_path(_folder(run), number + 1)
        if workspace.exists(_over_path(run, number)) or workspace.exists(later):
            return False
        if workspace.read_if_there(_beat_path(run, number)) != beat:
            raise EnvironmentProblem(
                f"another machine trains this run already ({claim}).",
                where=workspace.uri_of(entry_path(_folder(run), number)),
                advice=f"Wait for it, or end it there with `headway stop {run}`.",
            )
        last_s, looked_s = looked_s, time.monotonic()
        if looked_s - last_s > claim.lease_s / 2:
            since_s = looked_s  # the store was away, or this process halted: so the other's news may be, too
    return True


class RunClaim:
    """A run that this process has, until another one takes it over.

    Args:
        run: named as its folder is.
        run_dir: that folder.
    """

    def __init__(self, workspace: Workspace, run: str, run_dir: Path, ledger: Ledger) -> None:
        self._workspace, self._run, self._run_dir, self._ledger = workspace, run, run_dir, ledger
        self._number, self._every_s = 0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-claim", daemon=True)
        self._lost_to = ""
        self._is_told = False

    def renew(self, number: int, every_s: float) -> None:
        """From now on, behind the flow's back.

        Args:
            number: of the claim.
        """
        self._number, self._every_s = number, every_s
        self._thread.start()

    def end(self, is_over: bool) -> None:
        """Renew it no more.

        Args:
            is_over: whether nothing of the run goes on, so that whoever comes need not wait for the lease.
        """
        self._ended.set()
        if is_over and not self._lost_to:
            # A file of its own: a beat that is still on its way takes nothing back.
            with contextlib.suppress(OSError, HeadwayError):
                self._hasty(GIVE_UP_WITHIN_S).publish(_over_path(self._run, self._number), b"")
        self._thread.join(JOINED_WITHIN_S)

    def is_lost(self) -> bool:
        """Whether another machine has the run, as far as is known."""
        return bool(self._lost_to)

    def require(self) -> None:
        """Ask the store whether the run is still ours.

        Raises:
            Superseded: it is another's.
            EnvironmentProblem: the store does not answer.
        """
        if self._number and not self._lost_to:
            self._look(self._workspace)
        if self._lost_to:
            raise self._superseded()

    def stop_if_lost(self) -> None:
        """Have the ranks stop in order once another machine has the run. Call it often, in the main thread."""
        if self._lost_to and not self._is_told:
            self._is_told = True
            self._ledger.event("run.lost", run=self._run, message=self._lost_to)
        # Whoever begins an attempt, or queues another job, takes an older request away.
        if self._lost_to and requested_stop(self._run_dir) is None:
            with contextlib.suppress(OSError):  # on a full disk nothing can be asked for
                request_stop(self._run_dir, self._lost_to)

    @contextlib.contextmanager
    def telling_who_has_it(self) -> Iterator[None]:
        """What stops the body because the run is another's is no stop that anybody asked for.

        Raises:
            Superseded: the run was lost, and so the body was stopped.
        """
        try:
            yield
        except RunStopped as stopped:
            if self._lost_to:
                raise self._superseded() from stopped
            raise

    def _superseded(self) -> Superseded:
        return Superseded(
            f"{self._lost_to}: nothing more of it is published from here.",
            where=str(self._run_dir),
            advice="Who is halted, or cut off from the store, for longer than `launch.owner_lease_s` loses it.",
        )

    def _beat(self) -> None:
        workspace, count = self._hasty(self._every_s), 0
        while not self._lost_to:
            wait_s = self._every_s
            try:
                # Looked for first: after a halt, a newer claim is found before anything is written.
                self._look(workspace)
                workspace.publish(_beat_path(self._run, self._number), b"%d" % (count := count + 1))
            except (OSError, HeadwayError):
                wait_s /= 10  # the store is away: as soon as it is back, it is to hear of us
            if self._ended.wait(wait_s):
                return

    def _look(self, workspace: Workspace) -> None:
        own, later = (entry_path(_folder(self._run), number) for number in (self._number, self._number + 1))
        if workspace.exists(later):
            who = ""
            with contextlib.suppress(OSError, HeadwayError):
                who = f" ({_read(workspace, self._run, self._number + 1)})"
            self._lost_to = f"another machine goes on with run {self._run}{who}"
        elif not workspace.exists(own):
            self._lost_to = f"the claim on run {self._run} was removed"

    def _hasty(self, within_s: float) -> Workspace:
        """The workspace, for what is worth no more time."""
        # Few tries, and slow ones: a store that is away for long is not to fill anybody's log.
        waits = {"first_wait_s": within_s / 2, "longest_wait_s": within_s / 2}
        return Workspace(self._workspace.uri, Patience(deadline_s=within_s, attempt_s=within_s, **waits))


def owner_elsewhere(workspace: Workspace, run: str) -> str | None:
    """Who has a run by its newest claim, if it was heard of within its lease by this machine's clock: for people, since
    the store's clock may be another. None where nobody was, or where it cannot be told."""
    number = newest_entry(workspace, _folder(run))
    if not number or workspace.exists(_over_path(run, number)):
        return None
    heard_unix_s = workspace.written_unix_s(_beat_path(run, number))
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        claim = _read(workspace, run, number)
        if claim.writer in _writers_here(workspace.local_path(f"runs/{run}") / HERE):
            return None
        return str(claim) if time.time() - (heard_unix_s or claim.unix_s) < claim.lease_s else None
    return None


def is_claimed(files: Iterable[Listed]) -> bool:
    """Whether the newest of a run's claims, which are among these files, is not over and was heard of within a day."""
    claims = {file.path: file.unix_s for file in files if file.path.startswith(f"{OWNERS}/")}
    newest = max((path for path in claims if number_of(path.rpartition("/")[2])), default="")
    stem = newest.removesuffix(".json")
    if not newest or f"{stem}.over" in claims:
        return False
    heard_unix_s = max(claims[newest], claims.get(f"{stem}.beat", 0.0))
    return time.time() - heard_unix_s < FORGOTTEN_S
