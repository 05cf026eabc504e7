"""Accounts of many flow runs, added up one at a time: a workspace may have ten thousand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headway.flows.accounts.cost import UNPAID, CostLine, costs, total
from headway.flows.accounts.figures import TrainingFigures
from headway.flows.accounts.flow_account import PROBE, FlowAccount, Outcome
from headway.flows.accounts.goodput import FORWARD, Recovery, State, added
from headway.flows.accounts.objectives import ORDERLY, TRAINING
from headway.flows.config.profiles import PricesSpec


@dataclass(kw_only=True, slots=True)
class JobClassTally:
    """Of a job class, what its objectives count."""

    num_good: int = 0
    num_bad: int = 0
    """Failed or lost, and neither by a person nor by data."""
    num_done_in_window: int = 0
    num_cut: int = 0
    """Their window closed before they were done."""
    recoveries_s: list[float] = field(default_factory=list)

    @property
    def num_events(self) -> int:
        return self.num_good + self.num_bad

    @property
    def success(self) -> float | None:
        return share(self.num_good, self.num_events)

    @property
    def in_window(self) -> float | None:
        return share(self.num_done_in_window, self.num_done_in_window + self.num_cut)


@dataclass(kw_only=True, slots=True)
class Tally:
    num_flow_runs: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Of flow runs that failed or were lost."""
    by_class: dict[str, JobClassTally] = field(default_factory=dict)
    interruptions: Counter[str] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)
    device_s: dict[State, float] = field(default_factory=dict)
    figures: TrainingFigures = field(default_factory=TrainingFigures)
    cost: CostLine = field(default_factory=lambda: total([], 0))

    def take(self, account: FlowAccount, prices: PricesSpec) -> None:
        """Add a flow run that is over; of a probe, what it cost."""
        cost = costs([account], "pipeline", prices)
        self.cost = total([self.cost, *cost] if self.cost.num_flow_runs else cost, self.cost.num_flow_runs + 1)
        if account.job_class == PROBE:
            return
        self.num_flow_runs += 1
        self.outcomes[account.outcome] += 1
        if account.outcome in ("failed", "lost"):
            self.causes[account.cause] += 1
        of_class = self.by_class.setdefault(account.job_class, JobClassTally())
        of_class.num_good += account.outcome == "succeeded"
        of_class.num_bad += account.outcome in ("failed", "lost") and account.cause not in ORDERLY
        of_class.num_done_in_window += account.window_outcome == "done"
        of_class.num_cut += account.window_outcome == "cut"
        of_class.recoveries_s.extend(each.total_s for each in account.goodput.recoveries)
        self.interruptions.update(account.interruptions)
        self.recoveries.extend(account.goodput.recoveries)
        self.device_s = added(self.device_s, account.goodput.parts_device_s)
        self.figures.add(account.figures)

    @property
    def num_bad(self) -> int:
        """Flow runs that failed or were lost, and neither by a person nor by data."""
        return sum(number for cause, number in self.causes.items() if cause not in ORDERLY)

    @property
    def success(self) -> float | None:
        """Of flow runs that succeeded or are bad those that succeeded; None: there is none."""
        return share(self.outcomes["succeeded"], self.outcomes["succeeded"] + self.num_bad)

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: of device-seconds in training those of steps that count."""
        return share(self._seconds(FORWARD), self._seconds(TRAINING))

    @property
    def forward_share(self) -> float | None:
        """Of device-seconds that were paid for those of steps that count."""
        paid_s = sum(self.device_s.values()) - self._seconds(UNPAID)
        return share(self._seconds(FORWARD), paid_s)

    def _seconds(self, states: Iterable[State]) -> float:
        return sum(self.device_s.get(state, 0.0) for state in states)

    @property
    def checkpoints(self) -> tuple[int, int]:
        """Verifications that found a checkpoint whole, and all others."""
        counts = self.figures.checkpoints.counts.get("verify", {})
        return counts.get("ok", 0), sum(counts.values()) - counts.get("ok", 0)


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
