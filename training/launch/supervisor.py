"""The supervisor: starts attempts, watches them, and decides what follows; nothing outlives it.

attempt ──► done                       return
   │  ├──► stopped                     raise RunStopped
   │  └──► failed ──► budget ──► give up   raise the first rank's error
   └────────◄─────────── retry ◄──┘
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from data_contracts.errors import HeadwayError, RanksLost, RunStopped, StopReason, TrainingFailed
from data_contracts.places import lost_place
from data_contracts.publication import make_folder
from training.launch.failure import error_classes
from training.launch.hosts import Muster
from training.launch.launcher import Launcher
from training.launch.launchers import launcher_for
from training.launch.logs import last_lines
from training.launch.mandate import grant
from training.launch.membership import Membership
from training.launch.outcome import AttemptOutcome
from training.launch.protocol import TOKEN, AttemptFiles, StorePlace
from training.launch.reaper import reaped
from training.launch.retry_budget import AttemptRecord, AttemptRecords, GiveUp, decide
from training.launch.run_lock import owning
from training.launch.spec import Attempt, Gang, LaunchSpec, attempt_folder
from training.launch.stop_bound import StopWish
from training.launch.stop_request import clear_stop, requested_stop
from training.launch.watch import POLL_S, Watch
from training.ledger import Ledger

LOG_LINES = 5
ITS_LAST_LINES = "Its last lines:"
"""What comes before them, at the end of an error's advice."""
GATHER_S = 0.5
"""How often hosts that are still to come are looked for."""
GUARD_LATE_S = 2.0
"""Beyond its grace, before a guard whose owner is gone counts as gone itself."""


def supervise(
    spec: LaunchSpec,
    gang: Gang,
    *,
    ledger: Ledger,
    budget_scope: str,
    poll: Callable[[], int | None],
    asked: Callable[[], StopWish | None] = lambda: None,
) -> AttemptOutcome:
    """Run the gang to its end, over as many attempts as the budget allows.

    Call it in the main thread: that is where Ctrl-C and an orchestrator's termination arrive. Any exception that does
    arrive ends all processes of the run, in order if they can, before it travels on.

    Args:
        ledger: the owner's ledger; gets a span `attempt` for each, and events for what happened in between.
        budget_scope: attempts under one scope share `max_attempts`, whichever process started them.
        poll: called a few times a second; returns the newest step known, or None. A step is what the deadlines watch.
        asked: called as often; whether the owner has a reason of its own to stop.

    Raises:
        RunStopped: the gang's bound was reached, `request_stop` was called, or the ranks stopped by themselves.
        GoesElsewhere: another job of the run's scheduler is to go on with it; none does on other launchers.
        TrainingFailed: the budget is spent, or a rank failed for good.
        HeadwayError: a rank raised it and no retry can help: the same class, words and exit code.
        EnvironmentProblem: another process owns the run.
    """
    make_folder(gang.run_dir)
    with owning(gang.run_dir):
        clear_stop(gang.run_dir)
        launcher = launcher_for(spec)
        with ledger.span("launch.reattach"):
            launcher.reattach(gang.run_dir)
        token = secrets.token_hex(16)
        with reaped(TOKEN, token, spec.lost_grace_s + GUARD_LATE_S, elsewhere=launcher.sweeps(token)):
            return _Supervisor(spec, gang, launcher, ledger, budget_scope, token, poll, asked).run()


class GoesElsewhere(RunStopped):
    """The run is to go on in another job, without the host of a slow rank."""


class _Supervisor:
    def __init__(
        self,
        spec: LaunchSpec,
        gang: Gang,
        launcher: Launcher,
        ledger: Ledger,
        scope: str,
        token: str,
        poll: Callable[[], int | None],
        asked: Callable[[], StopWish | None],
    ) -> None:
        self._spec, self._gang, self._launcher, self._ledger = spec, gang, launcher, ledger
        self._scope, self._token, self._poll, self._asked = scope, token, poll, asked
        self._records = AttemptRecords(gang.run_dir)
        self._membership = Membership(spec, gang, launcher, ledger, self._records)

    def run(self) -> AttemptOutcome:
        self._refuse_a_spent_budget()
        while True:
            self._raise_if_stopped()
            self._wait_for_hosts()
            number = self._records.next_attempt()
            folder = attempt_folder(self._gang.run_dir, number)
            _make_attempt_folder(self._gang.run_dir, folder)
            grant(self._gang.run_dir, folder)
            outcome = self._run(number, folder)
            if outcome.state == "done":
                return outcome
            if outcome.left_out and self._membership.goes_elsewhere:
                self._raise_if_stopped()
                raise GoesElsewhere(outcome.what, where=str(self._gang.run_dir))
            if outcome.left_out:
                continue
            if outcome.state == "stopped":
                raise self._stopped(outcome.what, outcome.reason)
            decision = decide(self._records.in_scope(self._scope), self._spec)
            if isinstance(decision, GiveUp):
                raise failure(outcome, decision.reason, folder)
            what = f"attempt {number} ended: {outcome.what} Trying again."
            self._ledger.event("attempt.retry", attempt=number, cause=outcome.cause, what=what, wait_s=decision.wait_s)
            self._back_off(decision.wait_s)

    def _refuse_a_spent_budget(self) -> None:
        records = self._records.in_scope(self._scope)
        decision = decide(records, self._spec)
        if isinstance(decision, GiveUp):
            raise _spent(records[-1].cause)(
                f"the retry budget is spent: {records[-1].what} {decision.reason}", where=str(self._gang.run_dir)
            )

    def _wait_for_hosts(self) -> None:
        """As in a queue: no attempt is begun, and none spent, for hosts that are still to come."""
        begin_unix_s, waited = time.time(), False
        while not self._membership.is_gathered():
            waited = True
            self._raise_if_stopped()
            time.sleep(GATHER_S)
        if waited:
            self._ledger.elapsed("attempt.gather", begin_unix_s)

    def _run(self, number: int, folder: Path) -> AttemptOutcome:
        begin = AttemptRecord(
            attempt=number,
            scope=self._scope,
            begin_unix_s=time.time(),
            continued_by=self._gang.continued_by,
        )
        self._records.begin(begin)
        outcome = AttemptOutcome(state="stopped", cause="stopped", reason="asked", what="the owner was interrupted.")
        watch: Watch | None = None
        with self._ledger.span("attempt", attempt=number, folder=str(folder)) as fields:
            try:
                found, problem = self._membership.muster(number)
                if problem is not None:
                    outcome = problem
                else:
                    watch = self._watch(number, folder, found)
                    outcome = watch.run()
                    if watch.left_out and outcome.state == "stopped":
                        machine = watch.left_out.machine
                        what = f"{watch.why_left_out} The run goes on without {machine}."
                        self._ledger.event("host.left_out", attempt=number, host=str(watch.left_out), what=what)
                        outcome = replace(outcome, what=what, reason=None, rank=None, left_out=machine)
            finally:
                step = None if watch is None else watch.step
                fields.update(result=outcome.state, cause=outcome.cause, what=outcome.what, step=step)
                self._records.end(_record(begin, outcome, step))
        return outcome

    def _watch(self, number: int, folder: Path, found: Muster) -> Watch:
        members = found.members[: self._gang.most_nodes(len(found.members))]
        attempt = Attempt(
            number=number,
            folder=folder,
            token=self._token,
            rendezvous_id=f"{self._token[:8]}-{number}",
            members=members,
            owner_pid=os.getpid(),
        )
        AttemptFiles(folder).write_store(
            StorePlace(address=members[0].address, port=members[0].port, key=secrets.token_hex(32))
        )
        gang = replace(self._gang, nodes=len(members))
        return Watch(
            self._spec,
            gang,
            self._launcher,
            self._ledger,
            attempt,
            self._poll,
            self._stop_wish,
            partial(self._membership.goes_without, found),
        )

    def _stop_wish(self) -> StopWish | None:
        asked = requested_stop(self._gang.run_dir)
        if asked is not None:
            return StopWish(reason="asked", detail=asked)
        return self._gang.stop.wish() or self._asked()

    def _raise_if_stopped(self) -> None:
        if (wish := self._stop_wish()) is not None:
            raise self._stopped(f"{wish}: no attempt was started.", wish.reason)

    def _stopped(self, what: str, reason: StopReason | None) -> RunStopped:
        """A request is honoured once."""
        clear_stop(self._gang.run_dir)
        self._ledger.event("run.stopped", reason=reason, message=what, continued_by=self._gang.continued_by)
        advice = f"`{self._gang.continued_by}` continues it."
        return RunStopped(what, where=str(self._gang.run_dir), advice=advice, reason=reason)

    def _back_off(self, wait_s: float) -> None:
        with self._ledger.span("attempt.backoff"):
            deadline = time.monotonic() + wait_s
            while (left_s := deadline - time.monotonic()) > 0:
                self._raise_if_stopped()
                time.sleep(min(left_s, POLL_S))


def _make_attempt_folder(run_dir: Path, folder: Path) -> None:
    """Raises `EnvironmentProblem`: the run's folder went away, and is not made anew."""
    if (problem := lost_place(run_dir, run_dir)) is not None:
        raise problem
    folder.mkdir(parents=True)


def failure(outcome: AttemptOutcome, reason: str, folder: Path) -> HeadwayError:
    """The error a person sees: a rank's own where no retry could help, else what failed first and what its log says."""
    error_class = error_classes().get(outcome.error)
    if error_class is not None and not outcome.retryable and not issubclass(error_class, RunStopped):
        return error_class(outcome.what, where=outcome.where, advice=outcome.advice)
    named = outcome.rank is None or f"rank {outcome.rank} " in outcome.what
    rank = "" if named else f"rank {outcome.rank}: "
    lines = last_lines(Path(outcome.log), LOG_LINES) if outcome.log else []
    advice = [reason, _advice(outcome), f"Logs: {folder}", *([ITS_LAST_LINES, *lines] if lines else [])]
    return _spent(outcome.cause)(f"{rank}{outcome.what}", where=outcome.where, advice="\n".join(filter(None, advice)))


def _spent(cause: str) -> type[TrainingFailed]:
    """What a spent budget is called, by what spent it."""
    return RanksLost if cause == RanksLost.cause else TrainingFailed


def _advice(outcome: AttemptOutcome) -> str:
    if outcome.cause == "oom" and not outcome.advice:
        return "Lower the micro-batch, or give the ranks more memory."
    if outcome.cause == RanksLost.cause and not outcome.advice:
        where = f" on {outcome.host}" if outcome.host else ""
        return (
            f"Look whether the kernel killed a rank for want of memory (`dmesg`{where}), or the machine is gone; "
            "`headway doctor PIPELINE` looks for what else would fail there."
        )
    return outcome.advice


def _record(begin: AttemptRecord, outcome: AttemptOutcome, step: int | None) -> AttemptRecord:
    return AttemptRecord(
        attempt=begin.attempt,
        scope=begin.scope,
        state=outcome.state,
        cause=outcome.cause,
        what=outcome.what,
        reason=outcome.reason or "",
        continued_by=begin.continued_by,
        retryable=outcome.retryable,
        rank=outcome.rank,
        host=outcome.host,
        log=outcome.log,
        left_out=outcome.left_out,
        step=step,
        begin_unix_s=begin.begin_unix_s,
        end_unix_s=time.time(),
    )
