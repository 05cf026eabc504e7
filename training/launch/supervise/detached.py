"""The supervisor of a detached run, in its job: `python -m headway.training.launch.supervise.detached RUN_DIR`.

    flow ──order, lease──► run's folder ──► this process ──srun or pods──► guards ──► agents ──► ranks
    flow ◄──ledger, outcome── run's folder ◄──┘

SIGTERM is the scheduler's notice: a checkpoint is kept, and another start of the job goes on, which costs no attempt.
Slurm sends the same signal to a job that it is ending already, by somebody's `scancel` or to queue it again itself:
then the job's state is the last word, and no outcome is written. Kubernetes gives notice to one pod; where that is not
the supervisor's own, the run continues with the others, or with the one that comes in its place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError, RunStopped
from headway.training.launch.base.gang import leader_spools
from headway.training.launch.base.lease import WatcherLeaseMonitor
from headway.training.launch.base.protocol import JOB, read_json, write_json
from headway.training.launch.base.run_lock import owner_of
from headway.training.launch.base.stop_request import StopRequest, clear_stop, requested_stop
from headway.training.launch.jobs.job_request import DetachedFiles, JobOutcome, JobRequest
from headway.training.launch.jobs.job_start import JobStart, StartState
from headway.training.launch.kubernetes.pod_start import PodStart
from headway.training.launch.slurm.job_start import SlurmStart
from headway.training.launch.supervise.supervisor import Rescheduled, supervise
from headway.training.observe.ledger import Event, Ledger, SpoolTail

NOTICE = "the scheduler gave notice"
ENDING = "the scheduler is ending the job"
REPLACED = "a later start of the job took over"
PREDECESSOR_S = 60.0
"""How long an earlier start, which the scheduler could not reach any more, may take to notice the later one."""
ANSWER_S = 60.0
"""How long the scheduler may take to say whether a job whose run has failed goes on."""
POLL_S = 1.0
"""How often the lease is looked at: it may lie on a file system far away."""


class Detached:
    def __init__(self, run_dir: Path) -> None:
        self._has_notice = False
        # First of all: the scheduler's notice may come at any moment, and its default
        # would end us without a checkpoint.
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._run_dir, self._files = run_dir, DetachedFiles(run_dir)
        self._here: JobStart = PodStart(run_dir, os.environ) if JOB in os.environ else SlurmStart(os.environ)
        self._job = self._here.job
        self._start = {"job": self._job, "restarts": self._here.restarts}
        self._ledger = Ledger(self._files.spool(self._job, self._here.restarts), **self._start)
        self._has_lost_an_attempt = False
        self._why = ""
        """Why it is to stop, once it is."""
        self._looked_s = time.monotonic()
        self._ledger.listeners.append(self._listen)

    def run(self) -> int:
        """Returns the exit status: 0 also where the run failed in an orderly way, for the outcome says more."""
        order_id = ""
        try:
            # Inside the `try`: an order that cannot be read is an outcome too, and the flow reads why.
            order = JobRequest.load(self._files)
            order_id = order.order
            self._begin(order)
            while not self._is_done(order):
                message = "a machine is going away; the run continues without it, or with its replacement"
                self._ledger.event("job.room", message=message)
            outcome = JobOutcome(order=order_id, state="done", job=self._job)
        except BaseException as error:
            # A later start, or the scheduler's own state, has the last word; an outcome of ours would contradict it.
            if not self._is_ours():
                return self._here.left_status
            has_notice = isinstance(error, RunStopped) and self._why == NOTICE
            # Requeued by the scheduler, so no outcome: the flow would take it for the end of the order.
            if has_notice and self._has_drained():
                return self._here.left_status
            if has_notice or isinstance(error, Rescheduled):
                outcome = JobOutcome(order=order_id, state="preempted", job=self._job)
            else:
                outcome = JobOutcome.of_error(order_id, self._job, error, str(self._run_dir))
        self._ledger.event("job.end", state=outcome.state, what=outcome.failure.what)
        outcome.save(self._files)
        return 0

    def _begin(self, order: JobRequest) -> None:
        again = f", start {self._here.restarts + 1}" if self._here.restarts else ""
        self._ledger.event("job.begin", message=f"job {self._job} runs on {self._here.where()}{again}")
        # Taken now, not at submission: the wait in the queue is not held against the watcher.
        self._lease = WatcherLeaseMonitor(self._files.lease, order.spec.detached.lease_s)
        # Before anything is started: an earlier start that still lives sees it and ends.
        self._take_over()
        with contextlib.suppress(EnvironmentProblem):
            # The limit it was queued with holds in any case.
            self._here.limit(order.to_gang(), order.spec)

    def _is_done(self, order: JobRequest) -> bool:
        """False: a machine other than this has notice, a checkpoint is kept, and the run may go on."""
        try:
            self._supervise(order)
        except RunStopped:
            if self._why != NOTICE or self._has_notice:
                raise
            self._why = ""
            return False
        return True

    def _supervise(self, order: JobRequest) -> None:
        if (requested := requested_stop(self._run_dir)) is not None:
            # Asked for while the job was in the queue; a supervisor would take it for an older one.
            clear_stop(self._run_dir)
            raise RunStopped(f"{requested.why}: no attempt was started.", where=str(self._run_dir))
        supervise(
            order.spec,
            order.to_gang(),
            ledger=self._ledger,
            budget_scope=order.budget_scope,
            poll=NewestStep(self._run_dir).poll,
            requested=self._stop_due,
        )

    def _take_over(self) -> None:
        """A machine that Slurm gave up may live: what the job's earlier start left there ends itself."""
        write_json(self._files.start, self._start)
        deadline_s = time.monotonic() + PREDECESSOR_S
        # Waits for the lock, not for a message: an earlier start may be beyond the scheduler's reach.
        while owner_of(self._run_dir) is not None and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 4)

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._has_notice = True

    def _listen(self, event: Event) -> None:
        """What ends a job, or a machine of it, is first seen as an attempt that breaks."""
        self._has_lost_an_attempt = self._has_lost_an_attempt or event.get("result") == "failed"

    def _stop_due(self) -> StopRequest | None:
        if not self._why:
            self._why = self._why_stop()
        return StopRequest.now(self._why) if self._why else None

    def _why_stop(self) -> str:
        # Asking the scheduler costs seconds, so it is asked only when something points to an end.
        if self._has_notice or self._has_lost_an_attempt:
            state, name = self._here.state(), self._here.scheduler
            if state.is_over or self._has_notice:
                words = f"is being ended by {name}" if state.is_over else f"got notice of {name} that it must make room"
                self._ledger.event("job.notified", message=f"job {self._job} {words}", state=state.value)
                return ENDING if state.is_over else NOTICE
            self._has_lost_an_attempt = False
        if time.monotonic() - self._looked_s < POLL_S:
            return ""
        self._looked_s = time.monotonic()
        # Compared with what this start wrote: a later start of the job has replaced it.
        if read_json(self._files.start) not in (None, self._start):
            return REPLACED
        if self._lease.is_over():
            return "nobody watches it any longer"
        return NOTICE if self._here.is_draining() else ""

    def _is_ours(self) -> bool:
        """Whether this is still the job's newest start, and the job goes on: else its state has the last word."""
        if self._why in (ENDING, REPLACED) or read_json(self._files.start) not in (None, self._start):
            return False
        deadline_s = time.monotonic() + ANSWER_S
        while (state := self._here.state()) is StartState.UNKNOWN:
            # No answer: an outcome that is perhaps not needed does less harm than none.
            if time.monotonic() > deadline_s:
                return True
            time.sleep(POLL_S)
        return not state.is_over

    def _has_drained(self) -> bool:
        self._ledger.event("job.requeue", message=f"job {self._job} made room; another start of it continues")
        try:
            self._here.make_room()
        except EnvironmentProblem as problem:
            self._ledger.event("job.not_requeued", message=str(problem))
            return False
        return True


class NewestStep:
    """The newest step that rank 0 of an attempt begun from now on has written down."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._tails: dict[Path, SpoolTail] = {}
        # Spools of earlier attempts are known already; only one that begins now can show progress.
        self._old = set(leader_spools(self._run_dir))
        self._step: int | None = None

    def poll(self) -> int | None:
        for spool in leader_spools(self._run_dir):
            if spool in self._old:
                continue
            for event in self._tails.setdefault(spool, SpoolTail(spool)).poll():
                if event["event"] == "step":
                    self._step = int(event["step"])
        return self._step


def main(run_dir: str) -> int:
    try:
        return Detached(Path(run_dir)).run()
    except HeadwayError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
