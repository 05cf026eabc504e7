"""One retry budget for everything that starts an attempt: flow retries and lost ranks draw on the same records.

`<run_dir>/attempts.jsonl` has a line when an attempt begins and another when it ends; one that never ended lost its
owner. The decision is pure: an error's cause decides, and progress earns patience.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from headway.data_contracts.store.places import lost_place
from headway.training.launch.base.failure import EndState, Failure
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.protocol import attempt_numbers
from headway.training.launch.base.record import read_record, record_or_none
from headway.training.observe.ledger import Ledger, read_events

RECORDS_NAME = "attempts.jsonl"
OWNER_WAS_LOST = Failure(cause="infrastructure", what="its owner was lost.", retryable=True)
"""Of an attempt that was begun and never ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptRecord:
    attempt: int
    scope: str
    """Attempts of one scope share a budget."""
    state: EndState = "failed"
    failure: Failure = OWNER_WAS_LOST
    continued_by: str = ""
    """The command that goes on where it ended."""
    excluded: str = ""
    """A machine that later attempts of the run do without, for a rank on it was slow."""
    step: int | None = None
    """The newest step it reached, None before its first."""
    start_unix_s: float = 0.0
    end_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def decide(attempts: Sequence[AttemptRecord], spec: LaunchSpec) -> Retry | GiveUp:
    """Whether another attempt can help, given all attempts of this scope, oldest first, the last just ended badly.

    * Data, contract, configuration, integrity: the next attempt would meet the same; give up. Memory too, unless the
      rank noted a smaller micro-batch: then try again, free of charge, for that ends by itself.
    * Lost ranks and machines, and crashes, which may come from either: try again, at once after progress and with
      doubling waits otherwise, until `max_attempts`, or `max_cycles_without_progress` failures in a row without it.
    * Stopped attempts are free, and one that did its work closes the account: what follows begins anew.
    """
    done = max((index for index, attempt in enumerate(attempts) if attempt.state == "done"), default=-1)
    # A stop is nobody's fault, and each halving makes the micro-batch smaller, so it ends by itself.
    counted = [attempt for attempt in attempts[done + 1 :] if attempt.state != "stopped" and not _is_halving(attempt)]
    if not counted:
        return Retry(0.0)
    last = counted[-1]
    if not last.failure.retryable:
        return GiveUp(f"another attempt cannot help against a problem of kind {last.failure.cause!r}.")
    # Without progress the failures come from the start or from one place, and more attempts only cost machine time.
    cycles = cycles_without_progress(counted)
    if cycles >= spec.max_cycles_without_progress:
        return GiveUp(f"{_times(cycles)} in a row it came no further{_up_to(counted)}.")
    if len(counted) >= spec.max_attempts:
        spent = "its one attempt is" if spec.max_attempts == 1 else f"all {spec.max_attempts} attempts are"
        return GiveUp(f"{spent} spent.")
    # No wait after progress: what failed was rare. Without progress the cause may need time to pass, so waits double.
    return Retry(min(spec.backoff_s * 2 ** (cycles - 1), spec.max_backoff_s) if cycles else 0.0)


def _is_halving(attempt: AttemptRecord) -> bool:
    return attempt.failure.cause == "oom" and attempt.failure.retryable


def cycles_without_progress(attempts: Sequence[AttemptRecord]) -> int:
    """How many of the newest attempts came no further than the furthest before them."""
    best, cycles = -1, 0
    for attempt in attempts:
        step = -1 if attempt.step is None else attempt.step
        cycles = 0 if step > best else cycles + 1
        best = max(best, step)
    return cycles


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _up_to(attempts: Sequence[AttemptRecord]) -> str:
    steps = [attempt.step for attempt in attempts if attempt.step is not None]
    return f" than step {max(steps)}" if steps else ", not even to a first step"


class AttemptRecords:
    """The records of a run, over all its owners."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / RECORDS_NAME

    def begin(self, record: AttemptRecord) -> None:
        """Raises `EnvironmentProblem`: no space. What is not in the budget must not begin."""
        known = ("attempt", "scope", "start_unix_s", "continued_by")
        self._append("attempt.begin", {name: getattr(record, name) for name in known})

    def end(self, record: AttemptRecord) -> None:
        """Raises `EnvironmentProblem`: no space; the attempt then counts as one that lost its owner."""
        self._append("attempt", asdict(record))

    def all(self) -> list[AttemptRecord]:
        """Every attempt, oldest first; the newest line of an attempt wins."""
        known = {field.name for field in fields(AttemptRecord)}
        lines: dict[int, dict[str, Any]] = {}
        for line in read_events(self._path):
            if isinstance(line.get("attempt"), int) and "scope" in line:
                # The two lines of an attempt are merged field by field.
                known_line = {name: value for name, value in line.items() if name in known}
                earlier = lines.setdefault(line["attempt"], {})
                if record_or_none(AttemptRecord, earlier | known_line) is not None:
                    earlier.update(known_line)
        return [read_record(AttemptRecord, lines[attempt]) for attempt in sorted(lines) if lines[attempt]]

    def excluded(self) -> frozenset[str]:
        """Machines that the run does without."""
        return frozenset(record.excluded for record in self.all() if record.excluded)

    def in_scope(self, scope: str) -> list[AttemptRecord]:
        return [record for record in self.all() if record.scope == scope]

    def next_attempt(self) -> int:
        """A number that neither a record nor a folder carries yet."""
        # Folders count as well: an owner may have died between making one and writing its record.
        return max([0, *attempt_numbers(self._run_dir / "attempts"), *(record.attempt for record in self.all())]) + 1

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        # A workspace that was unmounted would be made again, empty, at the mount point.
        if (problem := lost_place(self._run_dir, self._run_dir)) is not None:
            raise problem
        with contextlib.closing(Ledger(self._path)) as ledger:
            ledger.event(event, **fields)
            # An attempt that is not in the budget would be repeated for ever by owners that crash.
            ledger.require_written()
