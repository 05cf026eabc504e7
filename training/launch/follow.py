"""A flow beside a detached run: it has the job queued, or finds it, renews its lease, and turns its end into its own.

Who ends the flow decides about the job. A flow that merely dies (SIGKILL, a lost machine or worker, a closed terminal,
a defect) harms nothing: the next one finds the job, and only if none comes for `lease_s` does it keep a checkpoint and
stop. A cancellation, SIGTERM or Ctrl-C is a person's wish, as `headway stop` is: the job stops in order.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from data_contracts.errors import EnvironmentProblem, HeadwayError, RunStopped
from training.launch.jobs import JobReport, JobState, Scheduler, SchedulerSilent
from training.launch.lease import Lease
from training.launch.order import DetachedFiles, JobHandle, Order, Outcome
from training.launch.retry_budget import AttemptRecords
from training.launch.run_lock import owning
from training.launch.spec import Gang, LaunchSpec
from training.launch.stop_bound import StopWish
from training.launch.stop_request import clear_stop, request_stop, requested_stop
from training.ledger import Event, Ledger, SpoolTail

POLL_S = 0.5
ASK_S = 2.0
"""How often the scheduler is asked: it has others to serve."""
OUTCOME_LATE_S = 5.0
"""How much later than the job's end its last word may be seen here."""
STOP_MARGIN_S = 5.0
"""Beyond the ranks' grace, and within the time that Prefect leaves a flow it cancels."""
LOG_LINES = 5
WORKER_LOST = "worker.lost"
"""The event that says that the flow is ended because its worker died, and by nobody's wish."""


def follow(
    scheduler: Scheduler,
    spec: LaunchSpec,
    gang: Gang,
    *,
    ledger: Ledger,
    budget_scope: str,
    poll: Callable[[], int | None],
) -> None:
    """Have the gang run to its end as a job, and return when it is done. Call it in the main thread.

    Args:
        ledger: the flow's; what the job's supervisor records is taken over into it.
        poll: called twice a second, so that people see how it goes.

    Raises:
        RunStopped: the run's bound was reached, a stop was asked for, or somebody cancelled the job.
        EnvironmentProblem: the scheduler refused the job, cannot be asked, or another flow watches the run already.
        HeadwayError: whatever the supervisor raised, as `supervise` does.
    """
    files = DetachedFiles(gang.run_dir)
    files.folder.mkdir(parents=True, exist_ok=True)
    with owning(files.folder, gang.run_dir.name):
        _Follower(scheduler, spec, gang, ledger, budget_scope, poll, files).run()


class _Follower:
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
        self._lease = Lease(files.lease, spec.detached.lease_s)
        self._tails: dict[Path, SpoolTail] = {}
        self._told: tuple[JobState, str] | None = None
        self._worker_is_lost = False
        self._jobs_in_vain = 0
        """That ended before an attempt was begun."""
        self._records = AttemptRecords(gang.run_dir)
        self._attempts_before = len(self._records.all())

    def run(self) -> None:
        self._ledger.listeners.append(self._listen)
        try:
            while not self._one_job():
                self._ledger.event("job.again", message="the job made room for another; it is queued again")
        except Exception:
            raise
        except BaseException as interrupt:
            if not self._worker_is_lost and not getattr(interrupt, "spares_detached_runs", False):
                self._stop_in_order()
            raise
        finally:
            self._ledger.listeners.remove(self._listen)

    def _listen(self, event: Event) -> None:
        self._worker_is_lost = self._worker_is_lost or event["event"] == WORKER_LOST

    def _one_job(self) -> bool:
        """Whether the run is done; if not, another job may go on with it."""
        self._lease.renew()
        handle = self._reattach()
        if handle is None:
            self._raise_if_stopped()
            handle = self._submit()
        with self._ledger.span("launch.follow", job=handle.job):
            outcome = self._outcome(handle)
        self._relay(handle)
        self._poll()
        if outcome is None:
            return False
        outcome.take_to_heart(self._files)
        if outcome.state in ("stopped", "failed"):
            raise outcome.to_error(handle.log)
        return outcome.state == "done"

    def _reattach(self) -> JobHandle | None:
        """The run's job, if it lives; or the one that ended well while nobody watched."""
        key = self._scheduler.key(self._gang.run_dir)
        job, known = self._patiently(lambda: self._scheduler.find(key)), JobHandle.load(self._files)
        while known is not None and job == known.job and Outcome.is_taken(self._files, known.order):
            # Its last word was heard; it has only to go.
            time.sleep(POLL_S)
            job = self._patiently(lambda: self._scheduler.find(key))
        if job is None:
            if known is None or (left := Outcome.load(self._files, known.order)) is None or left.state != "done":
                return None
            return known
        if known is None or known.job != job:
            order = Order.load(self._files).order
            log = str(self._files.log(job))
            known = JobHandle(launcher=self._scheduler.name, job=job, key=key, order=order, log=log)
            known.save(self._files)
        self._ledger.event("job.found", job=job, message=f"job {job} is watched again")
        return known

    def _submit(self) -> JobHandle:
        order = Order.of(secrets.token_hex(16), self._spec, self._gang, self._scope)
        self._files.outcome.unlink(missing_ok=True)
        clear_stop(self._gang.run_dir)
        self._attempts_before = len(self._records.all())
        order.save(self._files)
        with self._ledger.span("launch.submit"):
            handle = self._scheduler.submit(order)
        handle.save(self._files)
        self._ledger.event("job.submitted", job=handle.job, message=f"job {handle.job} is queued")
        return handle

    def _outcome(self, handle: JobHandle) -> Outcome | None:
        """Watch the job to its end.

        Returns:
            None where it ended by no fault of its own, without a last word.
        """
        asked_s, heard_s, ended_s = -ASK_S, time.monotonic(), 0.0
        report = JobReport(state=JobState.UNKNOWN)
        while (outcome := Outcome.load(self._files, handle.order)) is None:
            self._lease.renew()
            self._relay(handle)
            self._poll()
            now_s = time.monotonic()
            if now_s - asked_s >= ASK_S:
                asked_s, report = now_s, self._scheduler.poll(handle)
                self._tell(handle, report)
                heard_s = heard_s if report.state is JobState.UNKNOWN else now_s
            if now_s - heard_s > self._spec.detached.unreachable_s:
                raise _unreachable(handle, report)
            if report.state is JobState.PENDING:
                self._take_out_of_the_queue_if_stopped(handle)
            if report.state.has_ended:
                ended_s = ended_s or now_s
                if now_s - ended_s > OUTCOME_LATE_S:
                    self._raise_if_for_good(handle, report)
                    return None
            time.sleep(POLL_S)
        return outcome

    def _raise_if_for_good(self, handle: JobHandle, report: JobReport) -> None:
        """Where a job's supervisor could say nothing, its state does; returns where another job may go on."""
        if report.state is JobState.CANCELLED:
            self._ledger.event("run.stopped", reason="asked", message=f"job {handle.job} was cancelled")
            raise _stopped(self._gang, f"job {handle.job} was cancelled in {self._scheduler.name}.")
        if len(self._records.all()) > self._attempts_before:
            # The attempt that lost its owner counts: the next supervisor gives up where the budget is spent.
            return
        self._jobs_in_vain += 1
        if report.state is JobState.PREEMPTED and self._jobs_in_vain < self._spec.max_cycles_without_progress:
            return
        words = self._scheduler.last_words(handle, LOG_LINES)
        raise EnvironmentProblem(
            f"job {handle.job} ended before it could say how ({report.reason}).",
            where=handle.log,
            advice="\n".join(("Its last lines:", *words))
            if words
            else "It wrote nothing: ask who looks after the cluster.",
        )

    def _tell(self, handle: JobHandle, report: JobReport) -> None:
        if self._told != (told := (report.state, report.reason)):
            self._told = told
            message = f"job {handle.job} is {report.state.value} ({report.reason})"
            self._ledger.event("job.state", job=handle.job, message=message, restarts=report.restarts)

    def _relay(self, handle: JobHandle) -> None:
        """Into the flow's ledger what the job's supervisor has written down."""
        for spool in self._files.spools(handle.job):
            for event in self._tails.setdefault(spool, SpoolTail(spool)).poll():
                self._ledger.take_over(event)

    def _stop_wish(self) -> StopWish | None:
        asked = requested_stop(self._gang.run_dir)
        return self._gang.stop.wish() if asked is None else StopWish(reason="asked", detail=asked)

    def _raise_if_stopped(self) -> None:
        if (wish := self._gang.stop.wish()) is not None:
            raise _stopped(self._gang, f"{wish}: no job was queued.", wish)

    def _take_out_of_the_queue_if_stopped(self, handle: JobHandle) -> None:
        """A job that runs is stopped by its supervisor; in the queue there is none yet."""
        if (wish := self._stop_wish()) is not None:
            self._scheduler.cancel(handle)
            clear_stop(self._gang.run_dir)
            self._ledger.event("run.stopped", reason=wish.reason, message=str(wish))
            raise _stopped(self._gang, f"{wish}: job {handle.job} was taken out of the queue.", wish)

    def _stop_in_order(self) -> None:
        """Wait for a checkpoint as long as a cancelled flow may live; then the job is cancelled, stopped or not."""
        try:
            if (handle := self._living()) is not None:
                self._ledger.event("job.stop", message=f"job {handle.job} is asked to keep a checkpoint and end")
                self._stop(handle)
        except EnvironmentProblem as problem:
            # What interrupted the flow is what is told; the lease ends the job.
            self._tell_problem(problem)

    def _living(self) -> JobHandle | None:
        known = JobHandle.load(self._files)
        if known is not None and not self._scheduler.poll(known).state.has_ended:
            return known
        # The interrupt may have come before a job that was just queued was written down.
        key = self._scheduler.key(self._gang.run_dir)
        job = self._scheduler.find(key)
        if job is None:
            return None
        return JobHandle(launcher=self._scheduler.name, job=job, key=key, order="", log="")

    def _stop(self, handle: JobHandle) -> None:
        request_stop(self._gang.run_dir, "the flow was interrupted")
        deadline_s = time.monotonic() + self._spec.stop_grace_s + STOP_MARGIN_S
        state = self._scheduler.poll(handle).state
        while state in (JobState.RUNNING, JobState.UNKNOWN) and time.monotonic() < deadline_s:
            if self._files.outcome.exists():
                return
            time.sleep(POLL_S)
            state = self._scheduler.poll(handle).state
        if not state.has_ended:
            self._scheduler.cancel(handle)
        clear_stop(self._gang.run_dir)

    def _patiently(self, ask: Callable[[], str | None]) -> str | None:
        """A scheduler that gives no answer is asked again: to take that for a No could start a second job."""
        deadline_s = time.monotonic() + self._spec.detached.unreachable_s
        while True:
            try:
                return ask()
            except SchedulerSilent as problem:
                if time.monotonic() > deadline_s:
                    raise
                self._tell_problem(problem)
                time.sleep(ASK_S)

    def _tell_problem(self, problem: HeadwayError) -> None:
        self._ledger.event("job.unknown", message=str(problem))


def _stopped(gang: Gang, what: str, wish: StopWish | None = None) -> RunStopped:
    reason = "asked" if wish is None else wish.reason
    return RunStopped(what, where=str(gang.run_dir), advice=f"`{gang.continued_by}` continues it.", reason=reason)


def _unreachable(handle: JobHandle, report: JobReport) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"there was no word of job {handle.job} for too long: {report.reason}",
        where=handle.log,
        advice="It is left alone; the same retrain watches it again.",
    )
