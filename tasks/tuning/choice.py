"""Which value to take of those that were measured in turn, and how often to save: pure functions of the figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from headway.data_contracts.store.documents import Frozen

Value = int | float | None
Settings = dict[str, Value]
"""By dotted name in a pipeline file."""

MIN_GAIN = 0.02
"""A smaller one is not worth another setting."""
GAIN_PER_DOUBLING = 0.1
"""Of ranks: cores and memory that others could have are not to be taken for less."""
SHARE_THAT_COUNTS = 0.001
"""Of a run's time, by another interval of saves: less is not worth one, and is given for saving more often."""
NODE_DAYS_A_FAILURE = 154.0
"""Before a machine's own failures tell: 6.5 in 1,000 node-days (Kokolis et al., HPCA 2025)."""
DAY_S = 86400.0


class Measured(Frozen):
    """One value of a setting: its rounds, in their order."""

    shown: str
    settings: Settings
    rounds_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.rounds_s)

    @property
    def spread_s(self) -> float:
        """Between the quartiles of its rounds."""
        if len(self.rounds_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds_s, n=4, method="inclusive")
        return high - low


class Choice(NamedTuple):
    place: int
    """0: the default stays."""
    why: str


def choose(measured: Sequence[Measured], doublings: Sequence[float] = ()) -> Choice:
    """The fastest value, if it beats the default in every round, and by more than the spread of either.

    Args:
        measured: the default first; round by round in turn, so that rounds are pairs.
        doublings: of what each value takes of the machine, against the default; none where values cost the same. Each
            has to win `GAIN_PER_DOUBLING`, which decides between values as well.
    """
    costs = [(1 - GAIN_PER_DOUBLING) ** -max(0.0, each) for each in doublings] or [1.0] * len(measured)
    default, *others = measured
    if not others:
        return Choice(0, "there is no other value to try")
    index, best = min(enumerate(others, 1), key=lambda each: each[1].median_s * costs[each[0]])
    gain_s, spread_s = default.median_s - best.median_s, max(default.spread_s, best.spread_s)
    gain = f"{best.shown} is {100 * gain_s / default.median_s:.1f} % faster"
    if gain_s <= 0:
        return Choice(0, "no other value is faster")
    if gain_s <= spread_s:
        return Choice(0, f"{gain}, and rounds spread by {100 * spread_s / default.median_s:.1f} %")
    if any(ours >= theirs for ours, theirs in zip(best.rounds_s, default.rounds_s, strict=True)):
        return Choice(0, f"{gain}, but not in every round")
    if gain_s < MIN_GAIN * default.median_s:
        return Choice(0, f"{gain}, less than {100 * MIN_GAIN:g} %")
    if best.median_s * costs[index] > default.median_s:
        return Choice(0, f"{gain}, less than {100 * GAIN_PER_DOUBLING:g} % for each doubling")
    return Choice(index, f"{gain}; rounds spread by {100 * spread_s / default.median_s:.1f} %")


class FailureRecord(Frozen):
    """What became of the attempts of all runs of a workspace on this machine."""

    num_failures: int = 0
    """Attempts that lost ranks or machines."""
    node_days: float = 0.0
    """That attempts took, each on one node."""

    def mean_s(self, num_nodes: int) -> float:
        """Between failures of so many nodes; with a pseudo-failure of the literature's, until own ones outweigh it."""
        node_days = (self.node_days + NODE_DAYS_A_FAILURE) / (self.num_failures + 1)
        return node_days * DAY_S / max(1, num_nodes)


def best_interval_s(stall_s: float, durable_s: float, between_failures_s: float) -> float:
    """Seconds between saves, two digits: the shortest that lose as little as can be, and a thousandth more.

    The ones that lose least are Young's (1974; Daly, 2006), where the curve is flat. Between them and these lies a
    thousandth of the time, and these lose far less work where failures are more frequent than anybody knew.

    Args:
        stall_s: of training, by one save.
        durable_s: until a save is safe: the next one would wait for it.
    """
    youngs_s = math.sqrt(2 * stall_s * between_failures_s)
    bearable = (SHARE_THAT_COUNTS + share_lost(youngs_s, stall_s, between_failures_s)) if youngs_s else 0.0
    rest = math.sqrt(max(0.0, bearable**2 - 2 * stall_s / between_failures_s))
    # 2 s / (L + sqrt) in place of M (L - sqrt), which would subtract two numbers that are nearly equal.
    shortest_s = 2 * stall_s / (bearable + rest) if bearable else 0.0
    return float(f"{max(shortest_s, 2 * durable_s, 1.0):.2g}")


def share_lost(interval_s: float, stall_s: float, between_failures_s: float) -> float:
    """Of a run's time, to saves and to steps that are made again after failures."""
    return stall_s / interval_s + interval_s / 2 / between_failures_s


def choose_interval(
    stalls_s: Sequence[float], durable_s: float, default_s: float, between_failures_s: float
) -> tuple[float | None, str]:
    """The interval to take, or None: that of now stays; and why.

    Args:
        stalls_s: of each save that was measured.
        default_s: between saves, as the pipeline has it now.
    """
    low_s, middle_s, high_s = statistics.quantiles(stalls_s, n=4, method="inclusive")
    best_s = best_interval_s(middle_s, durable_s, between_failures_s)
    # Whichever of the quartiles a save really takes: else it is noise that decides.
    saved = [
        share_lost(default_s, stall_s, between_failures_s) - share_lost(best_s, stall_s, between_failures_s)
        for stall_s in (low_s, middle_s, high_s)
    ]
    facts = f"a save stalls {1000 * middle_s:.1f} ms ({1000 * low_s:.1f} to {1000 * high_s:.1f})"
    if min(saved) < SHARE_THAT_COUNTS:
        most = f"another interval saves {100 * max(0.0, saved[1]):.2f} % of the time"
        return None, f"{facts}; {most}"
    return best_s, f"{facts}; it saves {100 * saved[1]:.1f} % of the time"
