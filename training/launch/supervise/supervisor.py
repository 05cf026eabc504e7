"""The supervisor: starts attempts, watches them, and decides what follows; nothing outlives it.

attempt ──► done                       return
   │  ├──► stopped                     raise RunStopped
   │  └──► failed ──► budget ──► give up   raise the first rank's error
   └────────◄─────────── retry ◄──┘
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from headway.data_contracts.store.errors import (
    HeadwayError,
    RanksLost,
    RunStopped,
    StopReason,
    TrainingFailed,
    stop_error,
)
from headway.data_contracts.store.places import lost_place
from headway.data_contracts.store.publication import make_folder
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.fence import acquire
from headway.training.launch.base.gang import Attempt, Gang, LaunchSpec, attempt_folder
from headway.training.launch.base.host_probe import HostProbe
from headway.training.launch.base.launcher import Launcher, draw_token
from headway.training.launch.base.protocol import TOKEN, AttemptFiles, StorePlace
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords, GiveUp, decide
from headway.training.launch.base.run_lock import owning
from headway.training.launch.base.steps import Steps, run_to_completion
from headway.training.launch.base.stop_request import StopRequest, clear_stop, continuing, requested_stop
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.diagnosis.outcome import AttemptOutcome, stopped_outcome
from headway.training.launch.hosts.membership import Membership
from headway.training.launch.node.reaper import reaped
from headway.training.launch.supervise.launchers import launcher_for
from headway.training.launch.supervise.watch import POLL_S, AttemptMonitor, Beside
from headway.training.observe.ledger import Ledger

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
    requested: Callable[[], StopRequest | None] = lambda: None,
) -> AttemptOutcome:
    """Run the gang to its end, over as many attempts as the budget allows.

    Call it in the main thread: that is where Ctrl-C and an orchestrator's termination arrive. Any exception that does
    arrive ends all processes of the run, in order if they can, before it travels on.

    Args:
        ledger: the owner's ledger; gets a span `attempt` for each, and events for what happened in between.
        budget_scope: attempts under one scope share `max_attempts`, whichever process started them.
        poll: called a few times a second; returns the newest step known, or None. A step is what the deadlines watch.
        requested: called as often; whether the owner has a reason of its own to stop.

    Raises:
        RunStopped: the gang's bound was reached, `request_stop` was called, or the ranks stopped by themselves.
        Rescheduled: another job of the run's scheduler is to go on with it; none does on other launchers.
        TrainingFailed: the budget is spent, or a rank failed for good.
        HeadwayError: a rank raised it and no retry can help: the same class, words and exit code.
        EnvironmentProblem: another process owns the run.
    """
    return run_to_completion(
        supervising(spec, gang, ledger=ledger, budget_scope=budget_scope, poll=poll, requested=requested)
    )


def supervising(
    spec: LaunchSpec,
    gang: Gang,
    *,
    ledger: Ledger,
    budget_scope: str,
    poll: Callable[[], int | None],
    requested: Callable[[], StopRequest | None] = lambda: None,
    beside: Beside | None = None,
    whole: LaunchSpec | None = None,
) -> Steps[AttemptOutcome]:
    """As `supervise`, with waits that others can use.

    Args:
        whole: of all hosts that an earlier attempt may have had; None: it is `spec`.
        beside: attempts under the same owner; None: it has no others, and nothing to do meanwhile.
    """
    make_folder(gang.run_dir)
    with owning(gang.run_dir):
        # A request of before is done with: it stopped the run that had it then.
        clear_stop(gang.run_dir)
        launcher = launcher_for(spec)
        with ledger.span("launch.reattach"):
            # First the processes of a dead owner end: two gangs would write to one run.
            (launcher if whole is None else launcher_for(whole)).reattach(gang.run_dir)
        # A secret of this ownership: the sweep by token must never meet processes of another one.
        token = draw_token(gang.run_dir)
        # The reaper is started before the first rank, so there is no moment at which a kill leaves orphans.
        with reaped(TOKEN, token, spec.lost_grace_s + GUARD_LATE_S, sweep_remote=launcher.sweeps(token)):
            supervisor = _Supervisor(spec, gang, launcher, ledger, budget_scope, token, poll, requested, beside)
            return (yield from supervisor.run())


class Rescheduled(RunStopped):
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
        requested: Callable[[], StopRequest | None],
        beside: Beside | None,
    ) -> None:
        self._beside = beside
        self._spec, self._launcher, self._ledger = spec, launcher, ledger
        self._scope, self._token, self._poll, self._asked = scope, token, poll, requested
        self._records = AttemptRecords(gang.run_dir)
        self._gang = gang = replace(gang, stop=_while_held(gang.stop, gang.run_dir, self._records.in_scope(scope)))
        self._membership = Membership(spec, gang, launcher, ledger, self._records)

    def run(self) -> Steps[AttemptOutcome]:
        # Attempts of an owner that crashed count: otherwise a crash loop would renew its budget each time.
        self._refuse_a_spent_budget()
        while True:
            # Before the wait for hosts, which may be long, and again within it.
            self._raise_if_stopped()
            yield from self._wait_for_hosts()
            number = self._records.next_attempt()
            folder = attempt_folder(self._gang.run_dir, number)
            # The number is taken by the folder, which is made exclusively.
            _make_attempt_folder(self._gang.run_dir, folder)
            # After the folder: a later attempt finds this one by it.
            acquire(self._gang.run_dir, folder)
            outcome = yield from self._run(number, folder)
            if outcome.state == "done":
                return outcome
            if outcome.excluded and self._membership.is_rescheduled:
                self._raise_if_stopped()
                raise Rescheduled(outcome.failure.what, where=str(self._gang.run_dir))
            # A slow machine is no failure: the attempt costs nothing, and the next begins at once.
            if outcome.excluded:
                continue
            if outcome.state == "stopped":
                raise self._stopped(outcome.failure.what, outcome.failure.reason)
            # Read from disk, with all owners' attempts, not from memory.
            decision = decide(self._records.in_scope(self._scope), self._spec)
            if isinstance(decision, GiveUp):
                raise as_error(outcome.failure, decision.reason, folder)
            cause, what = outcome.failure.cause, f"attempt {number} ended: {outcome.failure.what} Trying again."
            self._ledger.event("attempt.retry", attempt=number, cause=cause, what=what, wait_s=decision.wait_s)
            yield from self._back_off(decision.wait_s)

    def _refuse_a_spent_budget(self) -> None:
        records = self._records.in_scope(self._scope)
        decision = decide(records, self._spec)
        if isinstance(decision, GiveUp):
            last = records[-1].failure
            what = f"the retry budget is spent: {last.what} {decision.reason}"
            raise _spent(last.cause)(what, where=str(self._gang.run_dir))

    def _wait_for_hosts(self) -> Steps[None]:
        """As in a queue: no attempt is begun, and none spent, for hosts that are still to come."""
        start_unix_s, waited = time.time(), False
        while not self._membership.is_gathered():
            waited = True
            self._raise_if_stopped()
            yield GATHER_S
        if waited:
            self._ledger.elapsed("attempt.gather", start_unix_s)

    def _run(self, number: int, folder: Path) -> Steps[AttemptOutcome]:
        begin = AttemptRecord(
            attempt=number,
            scope=self._scope,
            start_unix_s=time.time(),
            continued_by=self._gang.continued_by,
        )
        # Written before any process starts; a crash from here on is counted as an attempt.
        self._records.begin(begin)
        # What is recorded where an exception leaves the body: a person or a scheduler ended it.
        outcome = stopped_outcome("the owner was interrupted.", "requested")
        watch: AttemptMonitor | None = None
        with self._ledger.span("attempt", attempt=number, folder=str(folder)) as fields:
            try:
                found, problem = self._membership.probe_hosts(number)
                if problem is not None:
                    outcome = problem
                else:
                    watch = self._watch(number, folder, found)
                    outcome = yield from watch.run()
                    if watch.excluded and outcome.state == "stopped":
                        machine = watch.excluded.machine
                        what = f"{watch.why_excluded} The run continues without {machine}."
                        self._ledger.event("host.excluded", attempt=number, host=str(watch.excluded), what=what)
                        outcome = replace(stopped_outcome(what, None), excluded=machine)
            finally:
                step = None if watch is None else watch.step
                fields.update(result=outcome.state, cause=outcome.failure.cause, what=outcome.failure.what, step=step)
                # In `finally`: an attempt without an end counts as one whose owner was lost.
                self._records.end(_record(begin, outcome, step))
        return outcome

    def _watch(self, number: int, folder: Path, found: HostProbe) -> AttemptMonitor:
        # Possible numbers of nodes may be fewer than the hosts that answered.
        members = found.members[: self._gang.max_nodes(len(found.members))]
        attempt = Attempt(
            number=number,
            folder=folder,
            token=self._token,
            rendezvous_id=f"{self._token[:8]}-{number}",
            members=members,
            owner_pid=os.getpid(),
        )
        # Before the launch: ranks read where their store is as soon as they come up.
        AttemptFiles(folder).write_store(
            StorePlace(address=members[0].address, port=members[0].port, key=secrets.token_hex(32))
        )
        gang = replace(self._gang, nodes=len(members))
        return AttemptMonitor(
            self._spec,
            gang,
            self._launcher,
            self._ledger,
            attempt,
            self._poll,
            self._stop_due,
            partial(self._membership.exclude_slow, found),
            self._beside,
        )

    def _stop_due(self) -> StopRequest | None:
        return requested_stop(self._gang.run_dir) or self._gang.stop.if_due() or self._asked()

    def _raise_if_stopped(self) -> None:
        if (due := self._stop_due()) is not None:
            raise self._stopped(f"{due.why}: no attempt was started.", due.reason)

    def _stopped(self, what: str, reason: StopReason | None) -> RunStopped:
        """A request is honoured once."""
        bound = self._gang.stop
        # A wish that came too late for the ranks is honoured by whoever goes on after a step.
        if reason == "step reached" and (asked := requested_stop(self._gang.run_dir)) is not None:
            what, reason = f"{asked.why}: {what}", asked.reason
        # Ranks that stop by themselves know why, and not which bound on the cost it was.
        if bound.detail and reason == bound.reason:
            what = f"{bound.why}: {what.removeprefix(f'{reason}: ')}" if what.startswith(f"{reason}: ") else what
        # Otherwise the next retrain would be stopped by the same request.
        clear_stop(self._gang.run_dir)
        self._ledger.event("run.stopped", reason=reason, message=what, continued_by=self._gang.continued_by)
        return stop_error(
            what, where=str(self._gang.run_dir), advice=continuing(self._gang.continued_by, reason), reason=reason
        )

    def _back_off(self, wait_s: float) -> Steps[None]:
        with self._ledger.span("attempt.backoff"):
            deadline = time.monotonic() + wait_s
            while (left_s := deadline - time.monotonic()) > 0:
                # A request must not wait for the end of a long back-off.
                self._raise_if_stopped()
                yield min(left_s, POLL_S)


def _while_held(stop: StopRequest, run_dir: Path, records: Sequence[AttemptRecord]) -> StopRequest:
    """With what may be paid for as a moment, from now on; an earlier start of the same job has used some of it."""
    since = [record for record in records if record.start_unix_s >= stop.paid_since_unix_s]
    paid_s = sum(max(_last_sign_unix_s(run_dir, record) - record.start_unix_s, 0.0) for record in since)
    return stop.holding_devices(time.time(), paid_s)


def _last_sign_unix_s(run_dir: Path, record: AttemptRecord) -> float:
    """When it ended; of one whose owner was lost, when its rank 0 wrote last: what came then was held for nothing."""
    if record.end_unix_s is None:
        with contextlib.suppress(FileNotFoundError):
            return AttemptFiles(attempt_folder(run_dir, record.attempt)).rank_spool(0).stat().st_mtime
    return record.end_unix_s or record.start_unix_s


def _make_attempt_folder(run_dir: Path, folder: Path) -> None:
    """Raises `EnvironmentProblem`: the run's folder went away, and is not made anew."""
    if (problem := lost_place(run_dir, run_dir)) is not None:
        raise problem
    folder.mkdir(parents=True)


def as_error(failure: Failure, reason: str, folder: Path) -> HeadwayError:
    """The error a person sees: a rank's own where no retry could help, else what failed first and what its log says."""
    own = failure.to_error()
    # A rank's own error is the best message there is; only where a retry was possible does the budget explain the end.
    if own is not None and not failure.retryable and not isinstance(own, RunStopped):
        return own
    named = failure.rank is None or f"rank {failure.rank} " in failure.what
    rank = "" if named else f"rank {failure.rank}: "
    lines = last_lines(Path(failure.log), LOG_LINES) if failure.log else []
    advice = [reason, _advice(failure), f"Logs: {folder}", *([ITS_LAST_LINES, *lines] if lines else [])]
    return _spent(failure.cause)(f"{rank}{failure.what}", where=failure.where, advice="\n".join(filter(None, advice)))


def _spent(cause: str) -> type[TrainingFailed]:
    """What a spent budget is called, by what spent it."""
    return RanksLost if cause == RanksLost.cause else TrainingFailed


def _advice(failure: Failure) -> str:
    if failure.cause == "oom" and not failure.advice:
        return "Lower the micro-batch, or give the ranks more memory."
    if failure.cause == RanksLost.cause and not failure.advice:
        where = f" on {failure.host}" if failure.host else ""
        if failure.error:  # a rank lived to say that it does not reach its peers, and none is known to be gone
            first = f", first{where}," if where else ""
            return (
                f"Look whether the network between the hosts{first} lets ranks reach each other; "
                "`headway doctor PIPELINE` measures it, and looks for what else would fail there."
            )
        return (
            f"Look whether the kernel killed a rank for want of memory (`dmesg`{where}), or the machine is gone; "
            "`headway doctor PIPELINE` looks for what else would fail there."
        )
    return failure.advice


def _record(begin: AttemptRecord, outcome: AttemptOutcome, step: int | None) -> AttemptRecord:
    state, failure, excluded = outcome.state, outcome.failure, outcome.excluded
    return replace(begin, state=state, failure=failure, excluded=excluded, step=step, end_unix_s=time.time())
