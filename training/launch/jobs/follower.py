"""One detached run as a flow beside it sees it: what takes long is a generator, so that many can be watched at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem, RunStopped, stop_error
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.lease import WatcherLease
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.base.steps import Steps, run_to_completion
from headway.training.launch.base.stop_request import NEVER, StopRequest, clear_stop, request_stop, requested_stop
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobOutcome, JobRequest
from headway.training.launch.jobs.scheduler import JobReport, JobState, Scheduler, SchedulerSilent
from headway.training.observe.ledger import Ledger, SpoolTail

POLL_S = 0.5
QUERY_S = 2.0
"""How often the scheduler is asked: it has others to serve."""
OUTCOME_LATE_S = 5.0
"""How much later than the job's end its last word may be seen here."""
STOP_MARGIN_S = 5.0
"""Beyond the ranks' grace, and within the time that Prefect leaves a flow it cancels."""
LOG_LINES = 5


class Follower:
    def __init__(
        self,
        scheduler: Scheduler,
        spec: LaunchSpec,
        gang: Gang,
        ledger: Ledger,
        budget_scope: str,
        poll: Callable[[], int | None],
        files: DetachedFiles,
    ) -> None:
        self._scheduler, self._spec, self._gang, self._ledger = scheduler, spec, gang, ledger
        self._scope, self._poll, self._files = budget_scope, poll, files
        self._lease = WatcherLease(files.lease, spec.detached.lease_s)
        self._tails: dict[Path, SpoolTail] = {}
        self._reported: tuple[JobState, str] | None = None
        self._known: JobHandle | None = None
        """Its job, where that was asked before it is watched."""
        self._failed_jobs = 0
        """That ended before an attempt was begun."""
        self._records = AttemptRecords(gang.run_dir)
        self._attempts_before = len(self._records.all())

    @property
    def run_dir(self) -> Path:
        return self._gang.run_dir

    def is_there(self) -> bool:
        """Whether the run has a job already, or had one that came to its end."""
        # Before anything slow: the job may have been without a watcher for almost a whole lease.
        self._lease.renew()
        self._known = run_to_completion(self._reattach())
        return self._known is not None

    def run(self) -> Steps[None]:
        """Raises as `follow` does."""
        while not (yield from self._one_job()):
            self._ledger.event("job.again", message="another job continues the run")

    def _one_job(self) -> Steps[bool]:
        """Whether the run is done; if not, another job may go on with it."""
        self._lease.renew()
        # Another flow may have queued it, or this one before it was killed; a second job would train the same run.
        handle, self._known = self._known or (yield from self._reattach()), None
        if handle is None:
            handle = self._submit()
        with self._ledger.span("launch.follow", job=handle.job):
            outcome = yield from self._outcome(handle)
        self._relay(handle)
        self._poll()
        if outcome is None:
            return False
        # Read by this flow, so a later retrain does not meet the same failure again.
        outcome.acknowledge(self._files)
        if outcome.state in ("stopped", "failed"):
            raise outcome.to_error(handle.log)
        return outcome.state == "done"

    def _reattach(self) -> Steps[JobHandle | None]:
        """The run's job, if it lives; or the one that ended well while nobody watched."""
        known = JobHandle.load(self._files)
        key, job = yield from self._find(known)
        while known is not None and job == known.job and JobOutcome.is_acknowledged(self._files, known.order):
            # Its last word was heard; it has only to go.
            yield POLL_S
            key, job = yield from self._find(known)
        if job is None:
            # A job that ended well while nobody watched is as good as one that ends now; a failed one is queued again.
            if known is None or (left := JobOutcome.load(self._files, known.order)) is None or left.state != "done":
                return None
            return known
        if known is None or known.job != job:
            order = JobRequest.load(self._files).order
            log = str(self._files.log(job))
            known = JobHandle(launcher=self._scheduler.name, job=job, key=key, order=order, log=log)
            known.save(self._files)
        self._ledger.event("job.found", job=job, message=f"job {job} is watched again")
        return known

    def _find(self, known: JobHandle | None) -> Steps[tuple[str, str | None]]:
        """The key under which the run's job lives, and the job; the run's own key where none does."""
        for key in (keys := self._keys(known)):
            if (job := (yield from self._patiently(key))) is not None:
                return key, job
        return keys[0], None

    def _keys(self, known: JobHandle | None) -> list[str]:
        """Under which the run's job may live, its own first."""
        own = self._scheduler.key(self._gang.run_dir)
        return list(dict.fromkeys((own, own if known is None else known.key)))

    def _submit(self) -> JobHandle:
        order = self.write_order("")
        with self._ledger.span("launch.submit"):
            handle = self._scheduler.submit(order)
        return self._queued(handle)

    def write_order(self, key: str) -> JobRequest:
        """What the job is to run, for it to find.

        Args:
            key: under which it is about to be queued, where that is not the run's own: whoever comes after a flow that
                dies in between looks there.

        Raises:
            RunStopped: the run's time is over.
        """
        self._raise_if_stopped()
        without = self._records.excluded() if self._spec.stragglers == "exclude" else ()
        order = JobRequest.of(secrets.token_hex(16), self._spec, self._gang, self._scope, without)
        # An old outcome would end the new job's watch at once, and an old stop request the job itself.
        self._files.outcome.unlink(missing_ok=True)
        clear_stop(self._gang.run_dir)
        self._attempts_before = len(self._records.all())
        order.save(self._files)
        if key:
            # An array's elements have keys of their own, which a later flow could not derive from this run alone.
            JobHandle(launcher=self._scheduler.name, job="", key=key, order=order.order, log="").save(self._files)
        return order

    def is_queued_as(self, handle: JobHandle) -> None:
        self._known = self._queued(handle)

    def _queued(self, handle: JobHandle) -> JobHandle:
        handle.save(self._files)
        self._ledger.event("job.submitted", job=handle.job, message=f"job {handle.job} is queued")
        return handle

    def _outcome(self, handle: JobHandle) -> Steps[JobOutcome | None]:
        """Watch the job to its end.

        Returns:
            None where it ended by no fault of its own, without a last word.
        """
        queried_s, heard_s, ended_s = -QUERY_S, time.monotonic(), 0.0
        report = JobReport(state=JobState.UNKNOWN)
        # The outcome file is read first in each round: it is exact, where the scheduler's state lags behind.
        while (outcome := JobOutcome.load(self._files, handle.order)) is None:
            self._lease.renew()
            self._relay(handle)
            self._poll()
            now_s = time.monotonic()
            if now_s - queried_s >= QUERY_S:
                queried_s, report = now_s, self._scheduler.poll(handle)
                self._report(handle, report)
                # Only an answer counts as a sign; a scheduler that is silent says nothing of its job.
                heard_s = heard_s if report.state is JobState.UNKNOWN else now_s
                if report.state is JobState.PENDING:
                    self._take_out_of_the_queue_if_stopped(handle)
            if now_s - heard_s > self._spec.detached.unreachable_s:
                raise _unreachable(handle, report)
            if report.state.has_ended:
                ended_s = ended_s or now_s
                # A network file system may show the outcome some seconds after the job has ended.
                if now_s - ended_s > OUTCOME_LATE_S:
                    self._raise_if_for_good(handle, report)
                    return None
            yield POLL_S
        return outcome

    def _raise_if_for_good(self, handle: JobHandle, report: JobReport) -> None:
        """Where a job's supervisor could say nothing, its state does; returns where another job may go on."""
        # Somebody cancelled it by hand; the supervisor had no time to write an outcome.
        if report.state is JobState.CANCELLED:
            self._ledger.event("run.stopped", reason="requested", message=f"job {handle.job} was cancelled")
            raise _stopped(self._gang, f"job {handle.job} was cancelled in {self._scheduler.name}.")
        if len(self._records.all()) > self._attempts_before:
            # The attempt that lost its owner counts: the next supervisor gives up where the budget is spent.
            return
        self._failed_jobs += 1
        # Preempted before its first attempt, again and again: without this bound it would be queued for ever.
        if report.state is JobState.PREEMPTED and self._failed_jobs < self._spec.max_cycles_without_progress:
            return
        words = self._scheduler.log_tail(handle, LOG_LINES)
        raise EnvironmentProblem(
            f"job {handle.job} ended before it could say how ({report.reason}).",
            where=handle.log,
            advice="\n".join(("Its last lines:", *words))
            if words
            else "It wrote nothing: ask who looks after the cluster.",
        )

    def _report(self, handle: JobHandle, report: JobReport) -> None:
        if self._reported != (report_key := (report.state, report.reason)):
            self._reported = report_key
            message = f"job {handle.job} is {report.state.value} ({report.reason})"
            self._ledger.event("job.state", job=handle.job, message=message, restarts=report.restarts)

    def _relay(self, handle: JobHandle) -> None:
        """Into the flow's ledger what the job's supervisor has written down."""
        for spool in self._files.spools(handle.job):
            for event in self._tails.setdefault(spool, SpoolTail(spool)).poll():
                self._ledger.take_over({"run": self.run_dir.name, **event})

    def _raise_if_stopped(self) -> None:
        if (due := self._gang.stop.if_due()) is not None:
            raise _stopped(self._gang, f"{due.why}: no job was queued.", due)

    def _take_out_of_the_queue_if_stopped(self, handle: JobHandle) -> None:
        """A job that runs is stopped by its supervisor; in the queue there is none yet."""
        due = requested_stop(self._gang.run_dir) or self._gang.stop.if_due()
        if due is not None and self._is_out_of_the_queue(handle, time.monotonic()):
            clear_stop(self._gang.run_dir)
            self._ledger.event("run.stopped", reason=due.reason, message=due.why)
            raise _stopped(self._gang, f"{due.why}: job {handle.job} was taken out of the queue.", due)

    def _is_out_of_the_queue(self, handle: JobHandle, since_s: float) -> bool:
        """Takes out a job that waits there; False where it has started, however it was last seen before that moment."""
        # Asked again now: between the last look and the cancellation it may have started,
        # and would lose its checkpoint.
        state = self._scheduler.poll(handle, since_s=since_s).state
        if state is JobState.PENDING:
            self._scheduler.cancel(handle)
        return state is JobState.PENDING or state.has_ended

    def stop(self) -> Iterator[float]:
        """Wait for a checkpoint as long as a cancelled flow may live; then the job is cancelled, stopped or not."""
        try:
            if (handle := self._living()) is not None:
                self._ledger.event("job.stop", message=f"job {handle.job} is asked to keep a checkpoint and end")
                yield from self._stop(handle)
        except (EnvironmentProblem, OSError) as problem:
            # What interrupted the flow is what is reported; the lease ends the job.
            self._ledger.event("job.unknown", message=str(problem))

    def _living(self) -> JobHandle | None:
        known = JobHandle.load(self._files)
        if known is not None and known.job and not self._scheduler.poll(known).state.has_ended:
            return known
        # The interrupt may have come before a job that was just queued was written down. Asked once: the others wait.
        for key in self._keys(known):
            if (job := self._scheduler.find(key)) is not None:
                return JobHandle(launcher=self._scheduler.name, job=job, key=key, order="", log="")
        return None

    def _stop(self, handle: JobHandle) -> Iterator[float]:
        try:
            request_stop(self._gang.run_dir, "the flow was interrupted")
        except OSError as error:
            # On a full disk: the scheduler's own word reaches the job all the same, and keeps the last checkpoint.
            message = f"job {handle.job} is cancelled, for it cannot be asked to stop ({error})"
            self._ledger.event("job.stop", message=message)
            self._scheduler.cancel(handle)
            return
        queried_s = time.monotonic()
        deadline_s = queried_s + self._spec.stop_grace_s + STOP_MARGIN_S
        yield POLL_S  # others, which run, are asked before the scheduler is
        has_ended = self._is_out_of_the_queue(handle, queried_s)
        while not has_ended:
            if self._files.outcome.exists():
                return
            if time.monotonic() > deadline_s:
                self._scheduler.cancel(handle)
                break
            yield POLL_S
            has_ended = self._scheduler.poll(handle).state.has_ended
        clear_stop(self._gang.run_dir)

    def _patiently(self, key: str) -> Steps[str | None]:
        """A scheduler that gives no answer is asked again: to take that for a No could start a second job."""
        deadline_s = time.monotonic() + self._spec.detached.unreachable_s
        while True:
            try:
                return self._scheduler.find(key)
            except SchedulerSilent as problem:
                if time.monotonic() > deadline_s:
                    raise
                self._ledger.event("job.unknown", message=str(problem))
            # In pauses of the loop: meanwhile the same thread watches other runs.
            for _ in range(round(QUERY_S / POLL_S)):
                yield POLL_S


def _stopped(gang: Gang, what: str, due: StopRequest = NEVER) -> RunStopped:
    advice = f"`{gang.continued_by}` continues it."
    return stop_error(what, where=str(gang.run_dir), advice=advice, reason=due.reason)


def _unreachable(handle: JobHandle, report: JobReport) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"there was no word of job {handle.job} for too long: {report.reason}",
        where=handle.log,
        advice="It is left alone; the same retrain watches it again.",
    )
