"""The supervisor: starts attempts, watches them, and decides what follows; nothing outlives it.

    attempt ──► done                       return
       │  ├──► stopped                     raise RunStopped
       │  └──► failed ──► budget ──► give up   raise the first rank's error
       └────────◄─────────── retry ◄──┘
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from data_contracts.errors import HeadwayError, RunStopped, TrainingFailed
from training.launch.lateness import ProgressClock, describe_lateness, late_ranks, positions
from training.launch.launcher import Handle, Launcher, NodeReport
from training.launch.local import LocalLauncher
from training.launch.outcome import AttemptOutcome, Evidence, judge
from training.launch.protocol import AttemptFiles, Command, RankMarker
from training.launch.retry_budget import AttemptRecord, AttemptRecords, GiveUp, decide
from training.launch.run_lock import owning
from training.launch.spec import LOOPBACK, Attempt, Gang, LaunchSpec, attempt_folder
from training.launch.stop_request import clear_stop, requested_stop
from training.ledger import Ledger

POLL_S = 0.2
STACKS_S = 1.0
TEARDOWN_S = 3.0
"""How long agents may linger after all ranks are done."""
GUARD_MARGIN_S = 5.0
"""Beyond a guard's own grace, before the supervisor ends the guard itself."""
LOG_LINES = 5


def supervise(
    spec: LaunchSpec,
    gang: Gang,
    *,
    ledger: Ledger,
    budget_scope: str,
    poll: Callable[[], int | None],
    stop: Callable[[], bool] | None = None,
) -> AttemptOutcome:
    """Run the gang to its end, over as many attempts as the budget allows.

    Call it in the main thread: that is where Ctrl-C and an orchestrator's termination arrive. Any exception that does
    arrive ends all processes of the run, in order if they can, before it travels on.

    Args:
        ledger: the owner's ledger; gets a span `attempt` for each, and events for what happened in between.
        budget_scope: attempts under one scope share `max_attempts`, whichever process started them.
        poll: called a few times a second; returns the newest step known, or None. A step is what the deadlines watch.
        stop: whether to stop now, such as at a window's end.

    Raises:
        RunStopped: `stop` said so, `request_stop` was called, or the ranks stopped by themselves.
        TrainingFailed: the budget is spent, or a rank failed for good.
        HeadwayError: a rank raised it and no retry can help: the same class, words and exit code.
        EnvironmentProblem: another process owns the run.
    """
    gang.run_dir.mkdir(parents=True, exist_ok=True)
    with owning(gang.run_dir):
        launcher = LocalLauncher(spec)
        with ledger.span("launch.reattach"):
            launcher.reattach(gang.run_dir)
        clear_stop(gang.run_dir)
        return _Supervisor(spec, gang, launcher, ledger, budget_scope, poll, stop).run()


class _Supervisor:
    def __init__(
        self,
        spec: LaunchSpec,
        gang: Gang,
        launcher: Launcher,
        ledger: Ledger,
        scope: str,
        poll: Callable[[], int | None],
        stop: Callable[[], bool] | None,
    ) -> None:
        self._spec, self._gang, self._launcher, self._ledger = spec, gang, launcher, ledger
        self._scope, self._poll, self._stop = scope, poll, stop
        self._records = AttemptRecords(gang.run_dir)
        self._token = secrets.token_hex(16)

    def run(self) -> AttemptOutcome:
        self._refuse_a_spent_budget()
        while True:
            self._raise_if_stopped()
            attempt = self._new_attempt()
            outcome = self._run(attempt)
            if outcome.state == "done":
                return outcome
            if outcome.state == "stopped":
                clear_stop(self._gang.run_dir)
                raise RunStopped(outcome.what, where=str(self._gang.run_dir), advice="Run again to continue.")
            decision = decide(self._records.in_scope(self._scope), self._spec)
            if isinstance(decision, GiveUp):
                raise failure(outcome, decision.reason, attempt.folder)
            self._ledger.event(
                "attempt.retry", attempt=attempt.number, cause=outcome.cause, what=outcome.what, wait_s=decision.wait_s
            )
            self._back_off(decision.wait_s)

    def _refuse_a_spent_budget(self) -> None:
        records = self._records.in_scope(self._scope)
        decision = decide(records, self._spec)
        if isinstance(decision, GiveUp):
            raise TrainingFailed(
                f"the retry budget is spent: {records[-1].what} {decision.reason}", where=str(self._gang.run_dir)
            )

    def _new_attempt(self) -> Attempt:
        number = self._records.next_attempt()
        folder = attempt_folder(self._gang.run_dir, number)
        folder.mkdir(parents=True)
        return Attempt(
            number=number,
            folder=folder,
            token=self._token,
            rendezvous_id=f"{self._token[:8]}-{number}",
            rendezvous_port=free_port(),
            owner_pid=os.getpid(),
        )

    def _run(self, attempt: Attempt) -> AttemptOutcome:
        begin = AttemptRecord(attempt=attempt.number, scope=self._scope, begin_unix_s=time.time())
        watch = _Watch(self._spec, self._gang, self._launcher, self._ledger, attempt, self._poll, self._stop_reason)
        self._records.begin(begin)
        outcome = AttemptOutcome(state="stopped", cause="stopped", what="the owner was interrupted.")
        with self._ledger.span("attempt", attempt=attempt.number) as fields:
            try:
                outcome = watch.run()
            finally:
                fields.update(result=outcome.state, cause=outcome.cause, what=outcome.what, step=watch.step)
                self._records.end(_record(begin, outcome, watch.step))
        return outcome

    def _stop_reason(self) -> str | None:
        reason = requested_stop(self._gang.run_dir)
        if reason is None and self._stop is not None and self._stop():
            return "the time to stop has come"
        return reason

    def _raise_if_stopped(self) -> None:
        reason = self._stop_reason()
        if reason is not None:
            clear_stop(self._gang.run_dir)
            raise RunStopped(f"stopped: {reason}.", where=str(self._gang.run_dir), advice="Run again to continue.")

    def _back_off(self, wait_s: float) -> None:
        with self._ledger.span("attempt.backoff"):
            deadline = time.monotonic() + wait_s
            while (left_s := deadline - time.monotonic()) > 0:
                self._raise_if_stopped()
                time.sleep(min(left_s, POLL_S))


class _Watch:
    """One attempt, from its first process to its last."""

    def __init__(
        self,
        spec: LaunchSpec,
        gang: Gang,
        launcher: Launcher,
        ledger: Ledger,
        attempt: Attempt,
        poll: Callable[[], int | None],
        stop_reason: Callable[[], str | None],
    ) -> None:
        self._spec, self._gang, self._launcher, self._ledger = spec, gang, launcher, ledger
        self._attempt, self._poll, self._stop_reason = attempt, poll, stop_reason
        self._files = AttemptFiles(attempt.folder)
        self._clock = ProgressClock(spec, poll(), time.monotonic())
        self._sent: set[Command] = set()
        self._force_at_s: float | None = None
        self._is_up = False
        self._done_since_s: float | None = None
        self._stop_requested = False
        self._overdue = ""
        self._overdue_ranks: tuple[int, ...] = ()

    @property
    def step(self) -> int | None:
        return self._clock.step

    def run(self) -> AttemptOutcome:
        handle = self._launcher.submit(self._gang, self._attempt)
        try:
            reports = self._until_the_end(handle)
        except BaseException:
            self._launcher.cancel(handle, grace_s=self._spec.stop_grace_s)
            raise
        self._launcher.close(handle)
        self._clock.observe(self._poll(), {}, time.monotonic())
        return judge(self._evidence(reports))

    def _until_the_end(self, handle: Handle) -> Sequence[NodeReport]:
        while True:
            reports = self._launcher.poll(handle, wait_s=POLL_S)
            markers = self._files.read_markers()
            self._clock.observe(self._poll(), markers, time.monotonic())
            if all(report.has_ended for report in reports) or self._is_past_force():
                return reports
            self._note_coming_up(markers)
            self._stop_if_asked(handle)
            self._end_if_broken(handle, reports, markers)
            self._end_if_done(handle, markers)
            self._end_if_overdue(handle)

    def _note_coming_up(self, markers: Mapping[int, RankMarker]) -> None:
        if not self._is_up and len(markers) == self._gang.world_size:
            self._is_up = True
            self._ledger.event("attempt.up", attempt=self._attempt.number)

    def _stop_if_asked(self, handle: Handle) -> None:
        if self._stop_requested or self._sent:
            return
        reason = self._stop_reason()
        if reason is not None:
            self._stop_requested = True
            self._ledger.event("attempt.stop", attempt=self._attempt.number, reason=reason)
            self._tell(handle, Command.STOP)

    def _end_if_broken(self, handle: Handle, reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> None:
        command = answer(reports, markers)
        if command is not None and self._tell(handle, command):
            lost = sorted(rank for report in reports if report.status for rank in report.status.lost_ranks)
            if lost:
                self._ledger.event("rank.lost", attempt=self._attempt.number, ranks=lost)
            gone = [report.node for report in reports if report.has_ended]
            self._ledger.event("attempt.broken", attempt=self._attempt.number, ended_nodes=gone, command=command.name)

    def _end_if_done(self, handle: Handle, markers: Mapping[int, RankMarker]) -> None:
        if len(markers) < self._gang.world_size or not all(marker.state == "done" for marker in markers.values()):
            return
        now_s = time.monotonic()
        self._done_since_s = self._done_since_s or now_s
        if now_s - self._done_since_s > TEARDOWN_S:
            self._tell(handle, Command.PEER_LOST)

    def _end_if_overdue(self, handle: Handle) -> None:
        overdue = self._clock.overdue(time.monotonic())
        if not overdue or self._overdue or self._sent:
            return
        self._launcher.signal(handle, Command.STACKS)
        self._wait_for_stacks()
        ranks = positions(self._files, self._gang.world_size)
        self._overdue, self._overdue_ranks = describe_lateness(overdue, ranks), late_ranks(ranks)
        self._ledger.event(
            "attempt.overdue", attempt=self._attempt.number, what=self._overdue, ranks=self._overdue_ranks
        )
        self._tell(handle, Command.PEER_LOST)

    def _wait_for_stacks(self) -> None:
        deadline = time.monotonic() + STACKS_S
        paths = [self._files.stacks(rank) for rank in self._files.read_markers()]
        while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in paths):
            time.sleep(0.02)

    def _tell(self, handle: Handle, command: Command) -> bool:
        """Send a command once; returns whether it was news."""
        if command in self._sent or Command.PEER_LOST in self._sent:
            return False
        self._sent.add(command)
        grace_s = self._spec.stop_grace_s if command is Command.STOP else self._spec.peer_grace_s
        force_at_s = time.monotonic() + grace_s + GUARD_MARGIN_S
        self._force_at_s = min(self._force_at_s or force_at_s, force_at_s)
        self._launcher.signal(handle, command)
        return True

    def _is_past_force(self) -> bool:
        return self._force_at_s is not None and time.monotonic() > self._force_at_s

    def _evidence(self, reports: Sequence[NodeReport]) -> Evidence:
        return Evidence(
            world_size=self._gang.world_size,
            markers=self._files.read_markers(),
            nodes=reports,
            stop_requested=self._stop_requested,
            overdue=self._overdue,
            overdue_ranks=self._overdue_ranks,
            first_words=self._first_words(),
        )

    def _first_words(self) -> dict[int, str]:
        words = {}
        for node in range(self._gang.nodes):
            for log in sorted(self._files.rank_logs(node).glob("**/stderr.log")):
                if lines := last_lines(log, 1):
                    words[node] = lines[0]
        return words


def answer(reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> Command | None:
    """What to tell the nodes that still run, seeing how the others fare; None while all is well.

    Ranks that ended in order leave their peers the whole grace, for they are keeping the same checkpoint.
    """
    failed = any(marker.state == "failed" for marker in markers.values())
    lost = any(report.guard_was_lost or (report.status is not None and report.status.lost_ranks) for report in reports)
    if failed or lost:
        return Command.PEER_LOST
    broken = [report for report in reports if _ended_badly(report)]
    if not broken:
        return None
    in_order = {marker.node for marker in markers.values() if marker.state in ("stopped", "done")}
    told = all(report.status is not None and report.status.why in ("stop", "SIGTERM came") for report in broken)
    return Command.STOP if told or all(report.node in in_order for report in broken) else Command.PEER_LOST


def _ended_badly(report: NodeReport) -> bool:
    status = report.status
    return bool(report.guard_exit) or (status is not None and (bool(status.why) or bool(status.agent_exit)))


def failure(outcome: AttemptOutcome, reason: str, folder: Path) -> HeadwayError:
    """The error a person sees: a rank's own where no retry could help, else what failed first and what its log says."""
    error_class = _error_classes().get(outcome.error)
    if error_class is not None and not outcome.retryable and not issubclass(error_class, RunStopped):
        return error_class(outcome.what, where=outcome.where, advice=outcome.advice)
    rank = "" if outcome.rank is None else f"rank {outcome.rank}: "
    lines = last_lines(Path(outcome.log), LOG_LINES) if outcome.log else []
    advice = [reason, _advice(outcome), f"Logs: {folder}", *(["Its last lines:", *lines] if lines else [])]
    return TrainingFailed(f"{rank}{outcome.what}", where=outcome.where, advice="\n".join(filter(None, advice)))


def _advice(outcome: AttemptOutcome) -> str:
    if outcome.cause == "oom":
        return "Lower the micro-batch, or give the ranks more memory."
    return outcome.advice


def _error_classes() -> dict[str, type[HeadwayError]]:
    found: dict[str, type[HeadwayError]] = {}
    unseen: list[type[HeadwayError]] = [HeadwayError]
    while unseen:
        error_class = unseen.pop()
        found[error_class.__name__] = error_class
        unseen += error_class.__subclasses__()
    return found


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank; none when it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 8192))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _record(begin: AttemptRecord, outcome: AttemptOutcome, step: int | None) -> AttemptRecord:
    return AttemptRecord(
        attempt=begin.attempt,
        scope=begin.scope,
        state=outcome.state,
        cause=outcome.cause,
        what=outcome.what,
        retryable=outcome.retryable,
        step=step,
        begin_unix_s=begin.begin_unix_s,
        end_unix_s=time.time(),
    )
