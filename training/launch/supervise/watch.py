"""One attempt under watch, from its first process to its last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from headway.training.launch.base.gang import Attempt, Gang, LaunchSpec
from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.launcher import Handle, Launcher, NodeReport
from headway.training.launch.base.protocol import OWNER_LOST, AttemptFiles, Command, RankMarker, write_json
from headway.training.launch.base.stacks import are_whole, crash_in
from headway.training.launch.base.steps import Steps
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.diagnosis.adaptive_timeout import AdaptiveTimeout, TimeoutReporter
from headway.training.launch.diagnosis.hang_detection import (
    clock_for,
    describe_hang,
    hung_ranks,
    liveness_of,
    positions,
    stacks_text,
)
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.diagnosis.outcome import AttemptEvidence, AttemptOutcome, diagnose, unfinished_ranks
from headway.training.launch.diagnosis.rank_event_stream import RankEventStream
from headway.training.launch.diagnosis.stragglers import Straggler, StragglerDetector
from headway.training.observe.ledger import Ledger

POLL_S = 0.2
STACKS_S = 5.0
"""How long ranks may take to write their stacks, on a busy machine; a halted one writes none, and is not waited for."""
TEARDOWN_S = 3.0
"""How long agents may linger after all ranks are done."""
GUARD_MARGIN_S = 5.0
"""Beyond a guard's own grace, before the supervisor ends the guard itself."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Attempts that one owner watches in turn."""

    attempts: set[AttemptMonitor] = field(default_factory=set)


class AttemptMonitor:
    """One attempt, from its first process to its last."""

    def __init__(
        self,
        spec: LaunchSpec,
        gang: Gang,
        launcher: Launcher,
        ledger: Ledger,
        attempt: Attempt,
        poll: Callable[[], int | None],
        stop_due: Callable[[], StopRequest | None],
        exclude_slow: Callable[[Straggler, str], bool],
        beside: Beside | None = None,
    ) -> None:
        """Args:
        exclude_slow: whether the run goes on without the machine of a slow rank; this attempt then ends in order.
        beside: attempts under the same owner; None: it has none, and waits for its processes itself.
        """
        self._beside = beside
        self._wait_s = POLL_S if beside is None else 0.0
        self._handle: Handle | None = None
        self._spec, self._gang, self._launcher, self._ledger = spec, gang, launcher, ledger
        self._attempt, self._poll, self._stop_due = attempt, poll, stop_due
        self._exclude_slow = exclude_slow
        self.excluded: Host | None = None
        """Whose machine the run continues without, and why."""
        self.why_excluded = ""
        self._files = AttemptFiles(attempt.folder)
        self._words = RankEventStream(self._files)
        self._timeout = AdaptiveTimeout.after(spec, gang.run_dir, attempt=attempt.number, world_size=gang.world_size)
        self._stragglers = StragglerDetector(gang.world_size)
        self._timeout_reporter = TimeoutReporter(self._timeout, ledger, attempt.number)
        self._clock = clock_for(spec, poll(), time.monotonic(), self._timeout)
        self._sent: set[Command] = set()
        self._force_at_s: float | None = None
        self._start_unix_s = 0.0
        self._ending_since_unix_s: float | None = None
        self._is_up = False
        self._done_since_s: float | None = None
        self._request: StopRequest | None = None
        self._overdue = ""
        self._overdue_ranks: tuple[int, ...] = ()
        self._lost_with: dict[int, list[int]] = {}

    @property
    def step(self) -> int | None:
        return self._clock.step

    def run(self) -> Steps[AttemptOutcome]:
        """Raises whatever interrupts it, once nothing of the attempt is left."""
        self._start_unix_s = time.time()
        handle: Handle | None = None
        try:
            self._handle = handle = self._launcher.submit(self._gang, self._attempt)
            if self._beside is not None:
                self._beside.attempts.add(self)
            reports = yield from self._until_the_end(handle)
            for host in self._launcher.close(handle):
                what = _left_alone(host, self._spec)
                self._ledger.event("host.unreachable", attempt=self._attempt.number, host=host, what=what)
        except BaseException as interrupt:
            # At once: what this one waits for below, the others use for their checkpoints.
            for other in () if self._beside is None else self._beside.attempts - {self}:
                other.ask_to_stop()
            # The interrupt may have come before `submit` returned: the handle on disk is the older friend.
            # And where the run's folder is gone, it is the only one.
            left = Handle.load(self._gang.run_dir) or handle
            if left is not None and left.attempt == self._attempt.number:
                # One that is closed has been asked before.
                grace_s = 0.0 if isinstance(interrupt, GeneratorExit) else self._spec.stop_grace_s
                self._launcher.cancel(left, grace_s=grace_s)
            raise
        finally:
            if self._beside is not None:
                self._beside.attempts.discard(self)
            if self._ending_since_unix_s is not None:
                self._ledger.elapsed("attempt.ending", self._ending_since_unix_s, attempt=self._attempt.number)
        # Once more: a step that was written after the last look counts as progress in the budget.
        self._clock.observe(self._poll(), {}, time.monotonic())
        return diagnose(self._evidence(reports))

    def ask_to_stop(self) -> None:
        """From outside of its turn: its owner was interrupted."""
        if self._handle is not None and self._request is None and not self._sent:
            with contextlib.suppress(OSError):
                self._stop(self._handle, StopRequest.now("the owner was interrupted"))

    def _until_the_end(self, handle: Handle) -> Steps[Sequence[NodeReport]]:
        while True:
            reports = self._launcher.poll(handle, wait_s=self._wait_s)
            # After the reports: a rank that ended in between has then written its marker.
            markers = self._files.read_markers()
            # One time for the whole look: reading hundreds of markers takes long, and is not the ranks' delay.
            looked_s = time.monotonic()
            self._clock.observe(self._poll(), liveness_of(self._files, markers), looked_s)
            self._listen(handle, reports, markers)
            for report in reports:
                if report.guard_was_lost:
                    # Noted now, for ranks beyond a cut link go on and may write another end later.
                    self._lost_with.setdefault(report.node, unfinished_ranks(markers, report.node))
            # Past that moment guards are taken for stuck, and `close` ends them by force.
            if all(report.has_ended for report in reports) or self._is_past_force():
                self._note_a_break_that_is_over(reports, markers)
                return reports
            self._note_coming_up(markers)
            # In this order: a stop by request is recorded before ranks that end because of it look like a break.
            self._stop_if_requested(handle)
            self._end_if_broken(handle, reports, markers)
            self._end_if_done(handle, markers)
            self._end_if_overdue(handle, looked_s)
            yield POLL_S - self._wait_s

    def _listen(self, handle: Handle, reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> None:
        """To what ranks write down."""
        for rank, event in self._words.poll():
            self._timeout.take(rank, event)
            if (slow := self._stragglers.take(rank, event)) is not None:
                marker = markers.get(slow.rank)
                place = next((each.place for each in reports if marker and each.node == marker.node), None)
                machines = {each.place.machine for each in reports}
                self._report_slow(handle, slow, place, one_host=len(machines) < 2)
        self._timeout_reporter.report()

    def _report_slow(self, handle: Handle, slow: Straggler, place: Host | None, *, one_host: bool) -> None:
        host = "" if place is None else str(place)
        what = f"rank {slow.rank}{f' on {host}' if host else ''} is slow: {slow}."
        may_balance = self._spec.stragglers == "report" and self._stragglers.may_balance
        if may_balance and not one_host and slow.is_worth_balancing:
            what += f" With stragglers: rebalance a step would take about {slow.balanced_s:.2g} s."
        of_attempt = {"attempt": self._attempt.number, "host": host, "one_host": one_host}
        self._ledger.event("rank.slow", what=what, **of_attempt, **asdict(slow))
        # Not while the attempt ends anyway: its ranks are slow because they keep a checkpoint.
        if place is not None and self._request is None and not self._sent and self._exclude_slow(slow, place.machine):
            self.excluded, self.why_excluded = place, what
            self._stop(handle, StopRequest.now(what))

    def _note_coming_up(self, markers: Mapping[int, RankMarker]) -> None:
        if not self._is_up and len(markers) == self._gang.world_size:
            self._is_up = True
            self._ledger.elapsed("attempt.start", self._start_unix_s, attempt=self._attempt.number)

    def _stop_if_requested(self, handle: Handle) -> None:
        if self._request is not None or self._sent:
            return
        if (due := self._stop_due()) is not None:
            self._stop(handle, due)

    def _stop(self, handle: Handle, request: StopRequest) -> None:
        self._request = request
        self._ledger.event("attempt.stop", attempt=self._attempt.number, reason=request.why)
        self._send(handle, Command.STOP)

    def _end_if_broken(self, handle: Handle, reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> None:
        command = command_for(reports, markers)
        if command is not None and self._send(handle, command):
            self._note_break(command, reports, markers)

    def _note_a_break_that_is_over(self, reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> None:
        """All that had come up may have ended since the last look, and nobody is left to be told."""
        were_up = len(markers) == self._gang.world_size
        if self._sent or not were_up or all(marker.state == "done" for marker in markers.values()):
            return
        if (command := command_for(reports, markers)) is not None:
            self._note_break(command, reports, markers)

    def _note_break(self, command: Command, reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> None:
        name, what = describe_break(reports, markers)
        self._ledger.event(name, attempt=self._attempt.number, what=what, command=command.name)

    def _end_if_done(self, handle: Handle, markers: Mapping[int, RankMarker]) -> None:
        if len(markers) < self._gang.world_size or not all(marker.state == "done" for marker in markers.values()):
            return
        now_s = time.monotonic()
        self._done_since_s = self._done_since_s or now_s
        # Their work is done and durable; a teardown that hangs, as NCCL's may, must not hold the run.
        if now_s - self._done_since_s > TEARDOWN_S:
            self._send(handle, Command.PEER_LOST)

    def _end_if_overdue(self, handle: Handle, looked_s: float) -> None:
        overdue = self._clock.overdue(looked_s)
        if not overdue or self._overdue or self._sent:
            return
        # Later attempts then have the whole time, in case this step was only unusually slow.
        if self._timeout.ends_sooner:
            with contextlib.suppress(OSError):
                write_json(self._files.missed_step, {"what": overdue})
        # Before they are ended: the stacks are the only evidence of where a rank hangs.
        self._launcher.signal(handle, Command.STACKS)
        self._wait_for_stacks()
        ranks = positions(self._files, self._gang.world_size)
        self._overdue, self._overdue_ranks = describe_hang(overdue, ranks), hung_ranks(ranks)
        self._ledger.event(
            "attempt.overdue", attempt=self._attempt.number, what=self._overdue, ranks=self._overdue_ranks
        )
        # A hung rank reacts to no ordinary stop, so the short grace is enough.
        self._send(handle, Command.PEER_LOST)

    def _wait_for_stacks(self) -> None:
        deadline = time.monotonic() + STACKS_S
        # A stopped or dead process cannot run the handler that writes stacks.
        halted = {rank for rank, vitals in self._files.read_vitals().items() if vitals.state in "TXZ"}
        unfinished = {rank for rank, marker in self._files.read_markers().items() if not marker.has_ended}
        paths = [self._files.stacks(rank) for rank in sorted(unfinished - halted)]
        # Polled: faulthandler writes straight from the signal handler, and reports to nobody.
        while time.monotonic() < deadline and not all(are_whole(stacks_text(path)) for path in paths):
            time.sleep(0.02)

    def _send(self, handle: Handle, command: Command) -> bool:
        """Send a command once; returns whether it was news."""
        # After PEER_LOST nothing is worth waiting for, so no later command may lengthen the grace.
        if command in self._sent or Command.PEER_LOST in self._sent:
            return False
        self._sent.add(command)
        self._ending_since_unix_s = self._ending_since_unix_s or time.time()
        grace_s = self._spec.stop_grace_s if command is Command.STOP else self._spec.peer_grace_s
        force_at_s = time.monotonic() + grace_s + GUARD_MARGIN_S
        # The sooner of two: a break during an orderly stop shortens what is left.
        self._force_at_s = min(self._force_at_s or force_at_s, force_at_s)
        self._launcher.signal(handle, command)
        return True

    def _is_past_force(self) -> bool:
        return self._force_at_s is not None and time.monotonic() > self._force_at_s

    def _evidence(self, reports: Sequence[NodeReport]) -> AttemptEvidence:
        return AttemptEvidence(
            world_size=self._gang.world_size,
            # Read once more: guards have ended, and the last markers may have been written since.
            markers=self._files.read_markers(),
            nodes=reports,
            stopped_by=self._request,
            overdue=self._overdue,
            overdue_ranks=self._overdue_ranks,
            lost_with=self._lost_with,
            first_error=self._first_error(),
            crashes=self._crashes(reports),
        )

    def _crashes(self, reports: Sequence[NodeReport]) -> dict[int, str]:
        lost = [rank for report in reports if report.status for rank in report.status.lost_ranks]
        crashes = {rank: crash_in(stacks_text(self._files.stacks(rank))) for rank in lost}
        return {rank: crash for rank, crash in crashes.items() if crash}

    def _first_error(self) -> dict[int, str]:
        words = {}
        for node in range(self._gang.nodes):
            for log in sorted(self._files.rank_logs(node).glob("**/stderr.log")):
                # A rank that died during import has no marker; its last line on stderr is all that it left.
                if lines := last_lines(log, 1):
                    words[node] = lines[0]
        return words


def command_for(reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> Command | None:
    """What to tell the nodes that still run, seeing how the others fare; None while all is well.

    Ranks that ended in order leave their peers the whole grace, for they are keeping the same checkpoint.
    """
    failed = any(marker.state == "failed" for marker in markers.values())
    lost = any(report.guard_was_lost or (report.status is not None and report.status.lost_ranks) for report in reports)
    if failed or lost:
        return Command.PEER_LOST
    # An agent that ended with a failure may have had no rank that wrote a marker.
    broken = [report for report in reports if _ended_badly(report)]
    if not broken:
        return None
    in_order = _nodes_in_order(markers)
    # A guard that got SIGTERM was asked from outside, such as by a host that shuts down.
    are_requested = all(
        report.status is not None and report.status.why in ("stop", "SIGTERM came") for report in broken
    )
    return Command.STOP if are_requested or all(report.node in in_order for report in broken) else Command.PEER_LOST


def describe_break(reports: Sequence[NodeReport], markers: Mapping[int, RankMarker]) -> tuple[str, str]:
    """What was seen first of an attempt that breaks; the judgement comes when it has ended.

    Returns:
        The event's name, `ranks.stopped` where all ended in order and nobody was lost, else `rank.lost`; what to say.
    """
    lost = sorted(rank for report in reports if report.status for rank in report.status.lost_ranks)
    failed = sorted(marker.rank for marker in markers.values() if marker.state == "failed")
    ended = [report for report in reports if report.guard_was_lost or _ended_badly(report)]
    in_order = _nodes_in_order(markers) - {report.node for report in ended if _is_lost(report)}
    broken = sorted(report.node for report in ended if report.node not in in_order)
    for name, numbers in (("rank", lost), ("rank", failed), ("node", broken)):
        if numbers:
            return "rank.lost", f"{_named(name, numbers)} {_was(numbers)} lost; the attempt is ended."
    nodes = sorted(report.node for report in ended)
    stopped = any(marker.state == "stopped" and marker.node in nodes for marker in markers.values())
    end = "stopped as asked" if stopped else "are done"
    return "ranks.stopped", f"the ranks of {_named('node', nodes)} {end}; the attempt ends."


def _named(name: str, numbers: Sequence[int]) -> str:
    return f"{name}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _was(numbers: Sequence[int]) -> str:
    return "was" if len(numbers) == 1 else "were"


def _is_lost(report: NodeReport) -> bool:
    """Whether nobody asked for its end, however its ranks took it."""
    return report.guard_was_lost or (report.status is not None and report.status.why in OWNER_LOST)


def _nodes_in_order(markers: Mapping[int, RankMarker]) -> set[int]:
    return {marker.node for marker in markers.values() if marker.state in ("stopped", "done")}


def _left_alone(host: str, spec: LaunchSpec) -> str:
    ends_s = spec.lease_s + spec.lost_grace_s
    return f"{host} cannot be reached; what runs there ends by itself, {ends_s:g} s after the last word from here."


def _ended_badly(report: NodeReport) -> bool:
    status = report.status
    return bool(report.guard_exit) or (status is not None and (bool(status.why) or bool(status.agent_exit)))
