"""The supervisor of a detached run, as a job's batch step: `python -m training.launch.detached RUN_DIR`.

    flow ──order, lease──► run's folder ──► this process ──srun──► guards ──► agents ──► ranks
    flow ◄──ledger, outcome── run's folder ◄──┘

SIGTERM is Slurm's notice: a checkpoint is kept, and the job queued again, which costs no attempt. Slurm sends the same
signal to a job that it is ending already, by somebody's `scancel` or to queue it again itself: then the job's state is
the last word, and no outcome is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from data_contracts.errors import EnvironmentProblem, HeadwayError, RunStopped
from training.launch.lease import LeaseWatch
from training.launch.order import DetachedFiles, Order, Outcome
from training.launch.protocol import read_json, write_json
from training.launch.run_lock import owner_of
from training.launch.slurm import Slurm, StartState, job_of
from training.launch.stop_bound import StopWish
from training.launch.stop_request import clear_stop, requested_stop
from training.launch.supervisor import supervise
from training.ledger import Event, Ledger, SpoolTail

NOTICE = "the scheduler gave notice"
ENDING = "the scheduler is ending the job"
REPLACED = "a later start of the job took over"
PREDECESSOR_S = 60.0
"""How long an earlier start, which Slurm could not reach any more, may take to notice that there is a later one."""
ANSWER_S = 60.0
"""How long Slurm may take to say whether a job whose run has failed goes on."""
LOOK_S = 1.0
"""How often the lease is looked at: it may lie on a file system far away."""


class Detached:
    def __init__(self, run_dir: Path) -> None:
        self._has_notice = False
        signal.signal(signal.SIGTERM, self._hear)
        self._run_dir, self._files = run_dir, DetachedFiles(run_dir)
        self._job, self._restarts = job_of(os.environ)
        self._start = {"job": self._job, "restarts": self._restarts}
        self._slurm = Slurm()
        self._ledger = Ledger(self._files.spool(self._job, self._restarts), job=self._job, restarts=self._restarts)
        self._has_lost_an_attempt = False
        self._why = ""
        """Why it is to stop, once it is."""
        self._looked_s = time.monotonic()
        self._ledger.listeners.append(self._listen)

    def run(self) -> int:
        """Returns the exit status: 0 also where the run failed in an orderly way, for the outcome says more."""
        order_id = ""
        try:
            order = Order.load(self._files)
            order_id = order.order
            self._supervise(order)
            outcome = Outcome(order=order_id, state="done", job=self._job)
        except BaseException as error:
            if not self._is_ours():
                return 0
            if isinstance(error, RunStopped) and self._why == NOTICE:
                if self._queue_again():
                    return 0
                outcome = Outcome(order=order_id, state="preempted", job=self._job)
            else:
                outcome = Outcome.of_error(order_id, self._job, error, str(self._run_dir))
        self._ledger.event("job.end", state=outcome.state, what=outcome.error.get("what", ""))
        outcome.save(self._files)
        return 0

    def _supervise(self, order: Order) -> None:
        gang = order.to_gang()
        nodes = os.environ.get("SLURM_JOB_NODELIST", socket.gethostname())
        again = f", start {self._restarts + 1}" if self._restarts else ""
        self._ledger.event("job.begin", message=f"job {self._job} runs on {nodes}{again}")
        lease = LeaseWatch(self._files.lease, order.spec.detached.lease_s)
        if (asked := requested_stop(self._run_dir)) is not None:
            # Asked for while the job was in the queue; a supervisor would take it for an older one.
            clear_stop(self._run_dir)
            raise RunStopped(f"asked ({asked}): no attempt was started.", where=str(self._run_dir))
        self._take_over()
        with contextlib.suppress(EnvironmentProblem):
            # The limit it was queued with holds in any case.
            self._slurm.limit(self._job, gang, order.spec)
        supervise(
            order.spec,
            gang,
            ledger=self._ledger,
            budget_scope=order.budget_scope,
            poll=NewestStep(self._run_dir).poll,
            asked=lambda: self._wish(lease),
        )

    def _take_over(self) -> None:
        """A machine that Slurm gave up may live: what the job's earlier start left there ends itself."""
        write_json(self._files.start, self._start)
        deadline_s = time.monotonic() + PREDECESSOR_S
        while owner_of(self._run_dir) is not None and time.monotonic() < deadline_s:
            time.sleep(LOOK_S / 4)

    def _hear(self, _number: int, _frame: object) -> None:
        self._has_notice = True

    def _listen(self, event: Event) -> None:
        """What ends a job, or a machine of it, is first seen as an attempt that breaks."""
        self._has_lost_an_attempt = self._has_lost_an_attempt or event.get("result") == "failed"

    def _wish(self, lease: LeaseWatch) -> StopWish | None:
        if not self._why:
            self._why = self._why_stop(lease)
        return StopWish(reason="asked", detail=self._why) if self._why else None

    def _why_stop(self, lease: LeaseWatch) -> str:
        if self._has_notice or self._has_lost_an_attempt:
            state = self._slurm.state(self._job, self._restarts)
            if state.is_over or self._has_notice:
                words = "is being ended by Slurm" if state.is_over else "got notice of Slurm that it must make room"
                self._ledger.event("job.told", message=f"job {self._job} {words}", state=state.value)
                return ENDING if state.is_over else NOTICE
            self._has_lost_an_attempt = False
        if time.monotonic() - self._looked_s < LOOK_S:
            return ""
        self._looked_s = time.monotonic()
        if read_json(self._files.start) not in (None, self._start):
            return REPLACED
        return "nobody watches it any longer" if lease.is_over() else ""

    def _is_ours(self) -> bool:
        """Whether this is still the job's newest start, and the job goes on: else its state has the last word."""
        if self._why in (ENDING, REPLACED) or read_json(self._files.start) not in (None, self._start):
            return False
        deadline_s = time.monotonic() + ANSWER_S
        while (state := self._slurm.state(self._job, self._restarts)) is StartState.UNKNOWN:
            if time.monotonic() > deadline_s:
                return True
            time.sleep(LOOK_S)
        return not state.is_over

    def _queue_again(self) -> bool:
        self._ledger.event("job.requeue", message=f"job {self._job} made room; it is queued again")
        try:
            self._slurm.requeue(self._job)
        except EnvironmentProblem as problem:
            self._ledger.event("job.not_requeued", message=str(problem))
            return False
        return True


class NewestStep:
    """The newest step that rank 0 of an attempt begun from now on has written down."""

    def __init__(self, run_dir: Path) -> None:
        self._attempts = run_dir / "attempts"
        self._tails: dict[Path, SpoolTail] = {}
        self._old = set(self._spools())
        self._step: int | None = None

    def poll(self) -> int | None:
        for spool in self._spools():
            if spool in self._old:
                continue
            for event in self._tails.setdefault(spool, SpoolTail(spool)).poll():
                if event["event"] == "step":
                    self._step = int(event["step"])
        return self._step

    def _spools(self) -> list[Path]:
        return sorted(self._attempts.glob("*/ledger/rank-0.jsonl"))


def main(run_dir: str) -> int:
    try:
        return Detached(Path(run_dir)).run()
    except HeadwayError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
