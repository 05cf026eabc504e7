"""How an attempt ended, determined from what ranks and guards wrote down: exit codes say nothing under torchrun.

Pure. When one rank fails, its peers fail after it with torn connections; the diagnosis names the first, not the echo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.data_contracts.store.errors import StopReason
from headway.training.launch.base.failure import NO_FAILURE, EndState, Failure
from headway.training.launch.base.launcher import NodeReport
from headway.training.launch.base.protocol import OWNER_LOST, RankMarker
from headway.training.launch.base.stop_request import StopRequest

ECHO = "infrastructure"
"""The cause a rank reports when a peer or the network went away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptOutcome:
    """The end of an attempt."""

    state: EndState
    failure: Failure = NO_FAILURE
    """Why it ended before its end, by the first rank that failed."""
    excluded: str = ""
    """The machine that later attempts do without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEvidence:
    """All that is known when an attempt is over."""

    world_size: int
    markers: Mapping[int, RankMarker]
    nodes: Sequence[NodeReport]
    stopped_by: StopRequest | None = None
    """Why the supervisor asked it to stop; None when it did not."""
    overdue: str = ""
    """What the supervisor said when a deadline passed; empty when none did."""
    overdue_ranks: tuple[int, ...] = ()
    lost_with: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By node whose guard was lost, its ranks that had not ended when that was seen; beyond a cut link they yet do."""
    first_error: Mapping[int, str] = field(default_factory=dict)
    """By node, the last line on stderr of a rank that never came up."""
    crashes: Mapping[int, str] = field(default_factory=dict)
    """By rank, how and where it crashed, as it wrote at that moment itself."""


def diagnose(evidence: AttemptEvidence) -> AttemptOutcome:
    """The outcome of an attempt that is over; the earliest cause wins, whatever it tore down after it."""
    markers = evidence.markers
    # Markers first: a rank may abort in its own teardown after its work, which torchrun reports as a failure.
    if len(markers) == evidence.world_size and all(marker.state == "done" for marker in markers.values()):
        # A process may still abort while it is torn down; what it was started for is done.
        return AttemptOutcome(state="done")
    outcome = (
        # The order is the diagnosis: what the supervisor did comes before what ranks report, and echoes come last.
        _overdue(evidence)
        or _own_failure(evidence)
        or _stopped_on_request(evidence)
        or _lost_owner_below(evidence)
        or _stopped_by_itself(evidence)
        or _echo(evidence)
        or _never_came_up(evidence)
    )
    return replace(outcome, failure=replace(outcome.failure, host=_host(evidence, outcome.failure)))


def _host(evidence: AttemptEvidence, failure: Failure) -> str:
    """Where the rank or node that it names ran; empty where it names none."""
    marker = None if failure.rank is None else evidence.markers.get(failure.rank)
    node = failure.node if marker is None else marker.node
    return next((str(report.place) for report in evidence.nodes if report.node == node), "")


def _overdue(evidence: AttemptEvidence) -> AttemptOutcome | None:
    if not evidence.overdue:
        return None
    first = evidence.overdue_ranks[0] if evidence.overdue_ranks else None
    return _infrastructure(evidence.overdue, rank=first, log=_log_of(evidence, first))


def _own_failure(evidence: AttemptEvidence) -> AttemptOutcome | None:
    # Peers of a failed rank report torn connections; what is not such an echo is the first failure.
    own = [marker for marker in evidence.markers.values() if marker.state == "failed" and marker.failure.cause != ECHO]
    return _from_marker(min(own, key=lambda marker: marker.unix_s)) if own else None


def _stopped_on_request(evidence: AttemptEvidence) -> AttemptOutcome | None:
    request = evidence.stopped_by
    if request is None:
        return None
    late = [rank for rank in range(evidence.world_size) if not _ended_in_order(evidence.markers.get(rank))]
    stopped = [marker.failure.what for marker in evidence.markers.values() if marker.state == "stopped"]
    words = [*filter(None, stopped)]
    message = f"stopped, but without a word from rank {', '.join(map(str, late))}." if late else "stopped."
    what = f"{request.why}: {words[0] if words and not late else message}"
    return stopped_outcome(what, request.reason, rank=late[0] if late else None)


def _stopped_by_itself(evidence: AttemptEvidence) -> AttemptOutcome | None:
    everyone = [evidence.markers.get(rank) for rank in range(evidence.world_size)]
    if not all(_ended_in_order(marker) for marker in everyone):
        return None
    stopped = sorted((m for m in evidence.markers.values() if m.state == "stopped"), key=lambda m: m.unix_s)
    # The wish of one is everybody's, and only that one knows why. Where all came to their step, such a wish goes first.
    first = min(stopped, key=lambda m: (m.failure.reason is None, m.failure.reason == "step reached"))
    reason = first.failure.reason or "requested"
    return stopped_outcome(f"{reason}: {first.failure.what}", reason, rank=first.rank)


def stopped_outcome(what: str, reason: StopReason | None, rank: int | None = None) -> AttemptOutcome:
    return AttemptOutcome(state="stopped", failure=Failure(cause="stopped", what=what, reason=reason, rank=rank))


def _ended_in_order(marker: RankMarker | None) -> bool:
    return marker is not None and marker.state in ("done", "stopped")


def _lost_owner_below(evidence: AttemptEvidence) -> AttemptOutcome | None:
    """A guard, an agent or a rank that was killed; what hung below it fell with it."""
    # From the outside in: a lost guard takes its agent along, and a lost agent its ranks.
    for node in evidence.nodes:
        if node.guard_was_lost:
            what = f"the guard of node {node.node} ended ({_exit(node.guard_exit)}){_taken_along(evidence, node)}."
            return _lost(evidence, what, node=node.node)
    for node in evidence.nodes:
        status = node.status
        if status is not None and not status.why and status.agent_exit is not None and status.agent_exit < 0:
            what = f"the agent of node {node.node} ended ({_exit(status.agent_exit)}){_taken_along(evidence, node)}."
            return _lost(evidence, what, node=node.node)
    for node in evidence.nodes:
        if node.status is not None and node.status.lost_ranks:
            lost = node.status.lost_ranks
            # Peers of a rank that crashed may abort after it.
            rank = next((each for each in lost if each in evidence.crashes), lost[0])
            return _lost(evidence, _how_lost(rank, evidence.crashes), rank=rank, node=node.node)
    for node in evidence.nodes:
        # The owner judges here, so it lives: a link was cut, or it was halted itself.
        if node.status is not None and node.status.why in OWNER_LOST:
            what = f"node {node.node} had to take its owner for gone ({node.status.why})."
            return _lost(evidence, what, node=node.node)
    for node in evidence.nodes:
        if node.status is not None and node.status.why.endswith("came"):
            what = f"the guard of node {node.node} was asked to end ({node.status.why})."
            return _lost(evidence, what, node=node.node)
    return None


def _how_lost(rank: int, crashes: Mapping[int, str]) -> str:
    if crash := crashes.get(rank):
        return f"rank {rank} crashed: {crash}."
    return f"rank {rank} was killed, perhaps for want of memory; it left no word."


def _taken_along(evidence: AttemptEvidence, node: NodeReport) -> str:
    """Whom the end of a node's guard or agent took along."""
    ranks = ", ".join(map(str, _unfinished_of(evidence, node.node)))
    return f", and with it rank {ranks} on {node.place}" if ranks else f" on {node.place}"


def _unfinished_of(evidence: AttemptEvidence, node: int) -> Sequence[int]:
    # Taken when the loss was seen: beyond a cut link ranks end later, and their markers would hide who was lost.
    return evidence.lost_with.get(node) or unfinished_ranks(evidence.markers, node)


def unfinished_ranks(markers: Mapping[int, RankMarker], node: int) -> list[int]:
    """Those of the node's that have come up and left no last word."""
    return [rank for rank, marker in sorted(markers.items()) if marker.node == node and not marker.has_ended]


def _lost(evidence: AttemptEvidence, what: str, *, node: int, rank: int | None = None) -> AttemptOutcome:
    if rank is None:
        rank = min(_unfinished_of(evidence, node), default=None)
    return _infrastructure(what, rank=rank, node=node, log=_log_of(evidence, rank))


def _infrastructure(what: str, **where: Any) -> AttemptOutcome:
    return AttemptOutcome(state="failed", failure=Failure(cause=ECHO, what=what, retryable=True, **where))


def _echo(evidence: AttemptEvidence) -> AttemptOutcome | None:
    failed = [marker for marker in evidence.markers.values() if marker.state == "failed"]
    return _from_marker(min(failed, key=lambda marker: marker.unix_s)) if failed else None


def _never_came_up(evidence: AttemptEvidence) -> AttemptOutcome:
    missing = [rank for rank in range(evidence.world_size) if rank not in evidence.markers]
    if missing and evidence.first_error:
        node, line = min(evidence.first_error.items())
        failure = Failure(cause="training", what=line, rank=missing[0], node=node, retryable=True)
        return AttemptOutcome(state="failed", failure=failure)
    unfinished = missing or [rank for rank, marker in evidence.markers.items() if not marker.has_ended]
    names = ", ".join(map(str, unfinished)) or "none"
    what = f"the agents ended before every rank had done its work (unfinished: {names})."
    return _infrastructure(what, rank=unfinished[0] if unfinished else None)


def _from_marker(marker: RankMarker) -> AttemptOutcome:
    own = marker.failure
    # An echo may help again once the peer is back, whatever class of error carried it.
    retryable = own.retryable or own.cause == ECHO
    cause = own.cause or "training"
    failure = replace(own, cause=cause, rank=marker.rank, node=marker.node, log=marker.log, retryable=retryable)
    return AttemptOutcome(state="failed", failure=failure)


def _log_of(evidence: AttemptEvidence, rank: int | None) -> str:
    marker = evidence.markers.get(rank) if rank is not None else None
    return marker.log if marker is not None else ""


def _exit(code: int | None) -> str:
    if code is None:
        return "alive"
    return f"signal {-code}" if code < 0 else f"exit status {code}"
