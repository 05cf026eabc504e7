"""Having a run to oneself: of all machines that share a workspace in object storage, one at a time has it by a claim.

What a claim is, stands in `tasks/core/lease_records.py`; who may follow whom, in `lease_acquisition.py` beside this.

A process that finds a newer claim than its own has lost the run: it stops its ranks in order and publishes nothing more
of it. One that cannot reach the store continues, for however long: nothing of what it makes leaves its machine
before it has looked who has the run. Only what it was publishing in the very moment in which it was halted, it
completes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import HeadwayError, RunStopped, Superseded
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.core.lease_records import LeaseRecords
from headway.tasks.ownership.lease_acquisition import ObservedLease, acquire_lease
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.run_lock import owning
from headway.training.launch.base.stop_request import request_stop, requested_stop
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.observe.ledger import Ledger

BEATS = 6
"""In a lease."""
RELEASE_WITHIN_S = 5.0
"""For saying that a claim is over: a flow that was cancelled has little time."""
JOINED_WITHIN_S = 1.0
"""A beat that a store lets hang holds nobody up."""


@contextlib.contextmanager
def leased_run(
    context: RunContext, run: Link, spec: LaunchSpec, seen: ObservedLease | None = None
) -> Iterator[RunLease]:
    """Have a run to oneself while the body runs, among all machines; does nothing where the workspace is a folder.

    Args:
        seen: its newest claim, if anybody has looked before.

    Raises:
        EnvironmentProblem: another process has it; the message names it.
        RunStopped: the time was over before that could be told.
        IntegrityError: the newest claim cannot be read.
    """
    records, run_dir = LeaseRecords(context.workspace, run.sha256[:16]), context.workspace.local_path(run_folder(run))
    lease = RunLease(records, run_dir, context.ledger)
    if context.workspace.is_local:
        yield lease
        return
    records.here.mkdir(parents=True, exist_ok=True)
    # A job continues for a while without the flow that has claimed its run.
    lease_s = spec.owner_lease_s + (spec.detached.lease_s + spec.stop_grace_s if spec.is_detached else 0.0)
    # Whoever holds this lock knows that the makers of this machine's older claims are gone.
    with owning(records.here, records.run):
        with context.ledger.span("launch.lease"):
            number = acquire_lease(context, records, lease_s, seen)
        # After an error here a scheduler's job may still train; others then wait until the lease is over.
        is_over = not spec.is_detached
        try:
            lease.renew(number, spec.owner_lease_s / BEATS)
            yield lease
            is_over = True
        except RunStopped:
            is_over = True
            raise
        finally:
            lease.end(is_over or _has_no_job(run_dir))


def _has_no_job(run_dir: Path) -> bool:
    """Whether a detached run has come to the end of its job, or to none: its order is written down before."""
    files = DetachedFiles(run_dir)
    return files.outcome.exists() or not files.order.exists()


class RunLease:
    """A run that this process has, until another one takes it over.

    Args:
        run_dir: the run's folder.
    """

    def __init__(self, records: LeaseRecords, run_dir: Path, ledger: Ledger) -> None:
        self._records, self._run_dir, self._ledger = records, run_dir, ledger
        self._number, self._every_s = 0, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lease", daemon=True)
        self._lost_to = ""
        self._is_reported = False

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
            is_over: whether nothing of the run continues, so that whoever comes need not wait for the lease.
        """
        self._ended.set()
        if is_over and not self._lost_to:
            with contextlib.suppress(OSError, HeadwayError):
                self._impatient(RELEASE_WITHIN_S).release(self._number)
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
            self._look(self._records)
        if self._lost_to:
            raise self._superseded()

    def stop_if_lost(self) -> None:
        """Have the ranks stop in order once another machine has the run. Call it often, in the main thread."""
        if self._lost_to and not self._is_reported:
            self._is_reported = True
            self._ledger.event("run.lost", run=self._records.run, message=self._lost_to)
        # Whoever begins an attempt, or queues another job, takes an older request away.
        if self._lost_to and requested_stop(self._run_dir) is None:
            with contextlib.suppress(OSError):  # on a full disk nothing can be asked for
                request_stop(self._run_dir, self._lost_to)

    @contextlib.contextmanager
    def naming_the_owner(self) -> Iterator[None]:
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
        records, count = self._impatient(self._every_s), 0
        while not self._lost_to:
            wait_s = self._every_s
            try:
                # Looked for first: after a halt, a newer claim is found before anything is written.
                self._look(records)
                records.renew(self._number, count := count + 1)
            except (OSError, HeadwayError):
                wait_s /= 10  # the store is away: as soon as it is back, it is to hear of us
            if self._ended.wait(wait_s):
                return

    def _look(self, records: LeaseRecords) -> None:
        later = self._number + 1
        if records.is_there(later):
            owner = ""
            with contextlib.suppress(OSError, HeadwayError):
                owner = f" ({records.read(later)})"
            self._lost_to = f"another machine has resumed run {records.run}{owner}"
        elif not records.is_there(self._number):
            self._lost_to = f"the claim on run {records.run} was removed"

    def _impatient(self, within_s: float) -> LeaseRecords:
        """The records, for what is worth no more time."""
        # Few tries, and slow ones: a store that is away for long is not to fill anybody's log.
        waits = {"first_wait_s": within_s / 2, "longest_wait_s": within_s / 2}
        workspace = Workspace(self._records.workspace.uri, Patience(deadline_s=within_s, attempt_s=within_s, **waits))
        return replace(self._records, workspace=workspace)
