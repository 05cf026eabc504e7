"""Deadlines of an attempt, and who was late when one has passed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from headway.data_contracts.store.regular_files import read_regular
from headway.training.launch.base.gang import LaunchSpec, SteplessLaunchSpec
from headway.training.launch.base.protocol import AttemptFiles, RankMarker, RankVitals
from headway.training.launch.base.stacks import innermost_frame, waits_for_peers
from headway.training.launch.diagnosis.adaptive_timeout import AdaptiveTimeout
from headway.training.observe.ledger import SpoolTail

BLINK_S = 5.0
"""How long whoever watches may look away; what is beyond is not held against the ranks."""
MAX_STACKS_BYTES = 16 << 20


class Liveness(NamedTuple):
    """What shows from outside that a rank lives."""

    state: str
    step: int | None
    """By its marker."""
    num_bytes: int
    """Written into its ledger."""
    cpu_s: int = 0
    """Whole CPU seconds used. What merely waits wakes up for far less than one within any deadline."""


class Clock(Protocol):
    """Says when an attempt is overdue."""

    step: int | None
    """The newest step of this attempt, None before its first."""

    def observe(self, step: int | None, signs: Mapping[int, Liveness], now_s: float) -> None:
        """Take in the newest step, and every rank's sign of life."""

    def overdue(self, now_s: float) -> str:
        """What is overdue, in words, or the empty string."""


def clock_for(spec: LaunchSpec, step: int | None, now_s: float, timeout: AdaptiveTimeout) -> Clock:
    """The clock of an attempt that begins now.

    Args:
        step: what the caller's newest step is before the attempt begins; only a change counts.
        now_s: a monotonic time.
        timeout: what is known of the run's steps; the caller keeps it up to date.
    """
    return (
        SteplessClock(spec, now_s)
        if isinstance(spec, SteplessLaunchSpec)
        else ProgressClock(spec, step, now_s, timeout)
    )


class ProgressClock:
    """For ranks that train: overdue without a step or a word in time.

    Ranks meet at every step, so in a step that hangs nobody has anything more to say; outside of steps, while they read
    or write a checkpoint, they say that they get on.
    """

    def __init__(self, spec: LaunchSpec, step: int | None, now_s: float, timeout: AdaptiveTimeout) -> None:
        self._spec, self._timeout = spec, timeout
        self._step = step
        self._message: dict[int, Liveness] = {}
        self._moved_s = self._looked_s = now_s
        self.step: int | None = None

    def observe(self, step: int | None, signs: Mapping[int, Liveness], now_s: float) -> None:
        """A change of any rank's word counts like a step."""
        # The supervisor may have been halted, with its machine; that time is nobody's silence.
        self._moved_s += _looked_away_s(self._looked_s, now_s)
        self._looked_s = now_s
        # An attempt begins with the step of the run before it; only a change shows that this one has stepped.
        if step is not None and step != self._step:
            self.step = self._step = step
            self._moved_s = now_s
        # Markers and ledgers, not CPU time: a rank that spins in a collective uses CPU and makes no progress.
        if (message := _words(signs)) != self._message:
            self._message, self._moved_s = message, now_s

    def overdue(self, now_s: float) -> str:
        waited_s = now_s - self._moved_s
        if self.step is None:
            limit_s, what = self._spec.start_deadline_s, "no first step and no sign of life"
        else:
            limit_s = self._timeout.limit_s()
            what = f"no step after step {self.step} and no sign of life"
        took = f"; steps took {self._timeout}" if str(self._timeout) else ""
        return f"{what} within {limit_s:.3g} s{took}" if waited_s > limit_s else ""


class SteplessClock:
    """For ranks without steps: overdue without a word in a long time, or without a word and idle in a short one."""

    def __init__(self, spec: SteplessLaunchSpec, now_s: float) -> None:
        self._spec = spec
        self._signs: dict[int, Liveness] = {}
        self._last_message_s = self._moved_s = self._looked_s = now_s
        self.step: int | None = None

    def observe(self, step: int | None, signs: Mapping[int, Liveness], now_s: float) -> None:
        away_s = _looked_away_s(self._looked_s, now_s)
        self._last_message_s += away_s
        self._moved_s += away_s
        self._looked_s = now_s
        if _words(signs) != _words(self._signs):
            self._last_message_s = now_s
        if signs != self._signs:
            self._signs, self._moved_s = dict(signs), now_s

    def overdue(self, now_s: float) -> str:
        idle_s = self._spec.progress_deadline_s if self._signs else self._spec.start_deadline_s
        if now_s - self._moved_s > idle_s:
            return f"no sign of life within {idle_s:g} s"
        # A long call such as `torch.export` sends no events, so a busy process is allowed
        # far more time than an idle one.
        busy_s = max(self._spec.busy_deadline_s, idle_s)
        return f"at work, but without a word within {busy_s:g} s" if now_s - self._last_message_s > busy_s else ""


def _looked_away_s(looked_s: float, now_s: float) -> float:
    """What of the time since the last look is not held against the ranks."""
    # Who was halted itself knows nothing of that time: the machine may have been, with everybody on it.
    return max(0.0, now_s - looked_s - BLINK_S)


def _words(signs: Mapping[int, Liveness]) -> dict[int, Liveness]:
    # CPU time is left out: it grows in a process that merely waits actively.
    return {rank: sign._replace(cpu_s=0) for rank, sign in signs.items()}


def liveness_of(files: AttemptFiles, markers: Mapping[int, RankMarker]) -> dict[int, Liveness]:
    vitals = files.read_vitals()
    return {rank: _liveness(files, marker, vitals.get(rank)) for rank, marker in markers.items()}


def _liveness(files: AttemptFiles, marker: RankMarker, vitals: RankVitals | None) -> Liveness:
    # Whole seconds: a waiting process wakes up briefly, and each wake-up would count as life.
    used_s = 0 if vitals is None or marker.has_ended else int(vitals.cpu_s)
    return Liveness(marker.state, marker.step, _size_bytes(files.rank_spool(marker.rank)), used_s)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPosition:
    rank: int
    step: int | None
    state: str
    """The kernel's state letter; `X` for a rank that is gone or never came up, empty where nobody has looked."""
    ended: str = ""
    """How it ended, if it did: such a rank is not late."""
    doing: str = ""
    """Innermost frame of the main thread, from its stacks."""
    waits: bool = False
    """Whether it waits for its peers, by its stacks."""


def positions(files: AttemptFiles, world_size: int) -> list[RankPosition]:
    markers, vitals = files.read_markers(), files.read_vitals()
    return [_position(files, rank, markers.get(rank), vitals.get(rank)) for rank in range(world_size)]


def _position(files: AttemptFiles, rank: int, marker: RankMarker | None, vitals: RankVitals | None) -> RankPosition:
    if marker is None:
        # No marker, so the rank never came up; for the gang that is the same as one that is gone.
        return RankPosition(rank=rank, step=None, state="X")
    events = SpoolTail(files.rank_spool(rank)).stream()
    # The marker has the step at which it was last written; the ledger may know a later one.
    steps = (event["step"] for event in events if isinstance(event.get("step"), int))
    known = [max(steps, default=None), marker.step]
    step = max((step for step in known if step is not None), default=None)
    text = stacks_text(files.stacks(rank))
    return RankPosition(
        rank=rank,
        step=step,
        state="" if vitals is None else vitals.state,
        ended=marker.state if marker.has_ended else "",
        doing=innermost_frame(text),
        waits=waits_for_peers(text),
    )


def stacks_text(path: Path) -> str:
    """What a rank wrote of its stacks; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return read_regular(path, MAX_STACKS_BYTES).decode(errors="replace")
    return ""


def hung_ranks(ranks: list[RankPosition]) -> tuple[int, ...]:
    """The odd ones: gone or halted first; else those whom others wait for, those a step behind before others."""
    unfinished = [rank for rank in ranks if not rank.ended] or ranks
    # Stopped, zombie or gone: no stacks needed, for such a rank cannot take part in any collective.
    halted = tuple(rank.rank for rank in unfinished if rank.state and rank.state in "XTZ")
    if halted:
        return halted
    # Who is somewhere else while others wait is the one that they wait for; or who has not even said where it is.
    seen = [rank for rank in unfinished if (rank.doing and not rank.waits) or rank.state == "D"]
    elsewhere = seen or [rank for rank in unfinished if not rank.waits] or unfinished
    steps = [-1 if rank.step is None else rank.step for rank in elsewhere]
    # Of several, those at the earliest step: the others have passed the collective that hangs.
    return tuple(rank.rank for rank, step in zip(elsewhere, steps, strict=True) if step == min(steps))


def describe_hang(overdue: str, ranks: list[RankPosition]) -> str:
    late = hung_ranks(ranks)
    details = "; ".join(_describe(rank) for rank in ranks)
    names = "rank " + ", ".join(map(str, late)) if len(late) < len(ranks) else "all ranks"
    return f"{overdue}; late: {names} ({details})."


def _describe(rank: RankPosition) -> str:
    state = rank.ended or {"X": "gone or never up", "T": "halted", "Z": "dead"}.get(rank.state, "")
    step = "" if rank.step is None else f"at step {rank.step}"
    where = f"in {rank.doing}" if rank.doing else ""
    return f"rank {rank.rank} " + (" ".join(filter(None, (state, step, where))) or "silent")
