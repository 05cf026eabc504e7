"""What a search may spend, and whether another stretch of a trial still fits. Proposals know nothing of it.

What is spent is read from the attempts of the search's trials, by whomever they were trained: so a search that was
stopped or killed goes on with what is left. It decides where a search ends, and nothing else. Where nothing new was
trained it decides the same again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.types.report_text import length
from headway.tasks.search.rungs import AttemptPace

WHERE = "trials.budget"
HOUR_S = 3600.0


class BudgetSpec(Frozen):
    """Of all trials of a search together, by whomever they were trained; the search ends where the first is used up."""

    steps: int | None = Field(
        None,
        gt=0,
        description="Training steps, other seeds of finalists apart: no round begins that would take more. A first "
        "round that would is refused.",
    )
    hours: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Of wall time in which flow runs are at its trials, from the first one's start to the last one's "
        "end; a night between two windows is none. No trial begins a stretch that would take more, by what those "
        "before it took.",
    )
    usd: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="For the devices that its trials hold meanwhile, by the prices of the profile. No trial begins a "
        "stretch that would cost more.",
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.steps is None and not self.bounds_time:
            raise ValueError("say steps, hours or usd; without any of them leave `budget` out")
        return self

    def __str__(self) -> str:
        parts = [
            *([] if self.steps is None else [f"{self.steps:,} steps"]),
            *([] if self.hours is None else [f"{self.hours:g} hours"]),
            *([] if self.usd is None else [f"{self.usd:,.2f} USD"]),
        ]
        return ", ".join(parts)

    @property
    def bounds_time(self) -> bool:
        return self.hours is not None or self.usd is not None


class Worked(NamedTuple):
    """An attempt at training a trial."""

    flow_run: str
    begin_unix_s: float
    end_unix_s: float
    """Of one that goes on: now."""


class TrialProgress(NamedTuple):
    """What attempts of a trial have come to."""

    step: int = 0
    """The furthest."""
    is_finished: bool = False
    """Whether no step is left to make."""
    worked: tuple[Worked, ...] = ()

    def left(self, to_step: int) -> int:
        return 0 if self.is_finished else max(0, to_step - self.step)


class Spent(NamedTuple):
    steps: int
    wall_s: float
    """Of flow runs, each from the begin of its first attempt to the end of its last one."""
    trained_s: float
    """Of attempts, as if they had taken turns."""
    held_s: float
    """The same, and what lies between attempts of a flow run: scoring, for which devices are kept."""
    num_starts: int
    """Attempts."""


def spent_by(progress: Iterable[TrialProgress]) -> Spent:
    """What these trials have taken. Flow runs that work at the same time count each for itself."""
    known = list(progress)
    by_flow_run: dict[str, list[Worked]] = defaultdict(list)
    for each in known:
        for worked in each.worked:
            by_flow_run[worked.flow_run].append(worked)
    wall_s = between_s = trained_s = 0.0
    for attempts in by_flow_run.values():
        attempts.sort(key=lambda each: each.begin_unix_s)
        begin_s = until_s = attempts[0].begin_unix_s
        for attempt in attempts:
            between_s += max(0.0, attempt.begin_unix_s - until_s)
            until_s = max(until_s, attempt.end_unix_s)
            trained_s += max(0.0, attempt.end_unix_s - attempt.begin_unix_s)
        wall_s += until_s - begin_s
    num_starts = sum(map(len, by_flow_run.values()))
    return Spent(sum(each.step for each in known), wall_s, trained_s, trained_s + between_s, num_starts)


class SearchBudget:
    """
    Args:
        progress_of: reads what is on record of a trial's run, by the run's folder.
        usd_per_s: for the devices of one trial.
        pace: what starts and steps took in the pipeline's last run: nothing is known of this search before its first.
    """

    def __init__(
        self,
        spec: BudgetSpec,
        progress_of: Callable[[str], TrialProgress],
        usd_per_s: float = 0.0,
        pace: AttemptPace | None = None,
    ) -> None:
        self.spec = spec
        self._progress_of, self._usd_per_s, self._pace = progress_of, usd_per_s, pace
        self._known: dict[str, TrialProgress] = {}
        self._started: dict[str, int] = {}
        """By trial that may train now: to which step."""

    @property
    def knows_pace(self) -> bool:
        """Whether it can tell what trials take; it bounds none until then."""
        is_known = self._pace is not None or any(each.step for each in self._known.values())
        return is_known or not self.spec.bounds_time

    def know(self, runs: Iterable[str]) -> None:
        """Trials of the search; what was begun before has ended by now."""
        self._known |= {run: self._progress_of(run) for run in (*runs, *self._started)}
        self._started.clear()

    def left(self, run: str, to_step: int) -> int:
        """Steps that a trial has to make to come there."""
        return self._known[run].left(to_step)

    def refusal(self, wanted: Mapping[str, int], to_the_end: int = 0) -> str:
        """Why trials may not be trained further; empty: they may, and count as begun.

        Args:
            wanted: by run, to which step.
            to_the_end: steps to be kept back, with which the best comes to its end.
        """
        if not self.spec.bounds_time:
            return ""
        self._known |= {run: self._progress_of(run) for run in {*wanted, *self._started}}
        own = sum(self.left(run, step) for run, step in wanted.items())
        if not own:
            return ""
        beside = sum(self.left(run, step) for run, step in self._started.items() if run not in wanted)
        spent = spent_by(self._known.values())
        if why := self._first_exceeded(spent, own + beside, to_the_end):
            return why
        self._started.update(wanted)
        return ""

    def _first_exceeded(self, spent: Spent, steps: int, to_the_end: int) -> str:
        if spent.steps:
            of_all_s = spent.wall_s, spent.trained_s, spent.held_s
            wall_s, trained_s, held_s = (seconds / spent.steps for seconds in of_all_s)
        elif self._pace is not None:
            # A start for each stretch, of which nobody knows here how many there are.
            wall_s = trained_s = held_s = self._pace.step_s + self._pace.start_s / max(steps + to_the_end, 1)
        else:
            wall_s = trained_s = held_s = 0.0
        spec = self.spec
        if spec.hours is not None:
            # The one that goes on to its end is alone then, and pays for its steps what they take in turn.
            more_s = steps * wall_s + to_the_end * trained_s
            if spent.wall_s + more_s > spec.hours * HOUR_S:
                return _message(length(spent.wall_s), length(more_s), f"{spec.hours:g} hours")
        if spec.usd is not None:
            spent_usd = spent.held_s * self._usd_per_s
            more_usd = (steps * held_s + to_the_end * trained_s) * self._usd_per_s
            if spent_usd + more_usd > spec.usd:
                return _message(f"{spent_usd:,.2f} USD", f"{more_usd:,.2f}", f"{spec.usd:,.2f} USD")
        return ""


def _message(spent: str, more: str, budget: str) -> str:
    return f"{spent} so far, and what follows would take about {more}: more than {budget} in all"
