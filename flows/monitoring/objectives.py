"""Error budgets: what may fail of a kind, and how fast it may be spent before somebody hears of it. Pure.

Windows and rates are those of the Site Reliability Workbook (Beyer et al., 2018, "Alerting on SLOs"). Retrains are few,
and a ratio of few events says nothing: each long window needs `LEAST_EVENTS`. Single failures have alerts of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

BUDGET_WINDOW = "30d"
LEAST_EVENTS = 10
BURN_RATES: Mapping[Literal["page", "ticket"], tuple[tuple[float, str, str], ...]] = MappingProxyType(
    {
        "page": ((14.4, "1h", "5m"), (6.0, "6h", "30m")),
        "ticket": ((3.0, "1d", "2h"), (1.0, "3d", "6h")),
    }
)
"""The budget is spent so many times too fast over the long window, and still so over the short one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    key: str
    """Of its totals: `workspace:<key>_bad:total` of `workspace:<key>:total`."""
    alert: str
    title: str
    target: float
    """The share that has to be good over `BUDGET_WINDOW`."""
    advice: str


OBJECTIVES = (
    Objective(
        key="runs",
        alert="RunBudgetBurns",
        title="retrains",
        target=0.99,
        advice="Neither people nor data were the cause. Run `headway status`, and compare the failure cards.",
    ),
    Objective(
        key="checkpoints",
        alert="CheckpointBudgetBurns",
        title="verifications of checkpoints",
        target=0.995,
        advice="Run `headway logs`, and look at the disk and the memory of the machine that wrote them.",
    ),
)


def windows() -> tuple[str, ...]:
    """All over which the share of bad events is recorded, the shortest first."""
    pairs = [pair[1:] for rates in BURN_RATES.values() for pair in rates]
    named = dict.fromkeys([*sorted({window for pair in pairs for window in pair}, key=_seconds), BUDGET_WINDOW])
    return tuple(named)


def _seconds(window: str) -> int:
    return int(window[:-1]) * {"m": 60, "h": 3600, "d": 86400}[window[-1]]


def bad_share(objective: Objective, window: str) -> str:
    """The name of the series that `rules` records."""
    return f"workspace:{objective.key}_bad:share_{window}"


def burning(objective: Objective, severity: Literal["page", "ticket"]) -> str:
    """The condition: for one of the pairs, both windows are over the rate, and the long one has enough events."""
    pairs = []
    for rate, long, short in BURN_RATES[severity]:
        limit = f"{rate:g} * {1 - objective.target:.3g}"
        pairs.append(
            f"{bad_share(objective, long)} > {limit}\n"
            f"and {bad_share(objective, short)} > {limit}\n"
            f"and increase(workspace:{objective.key}:total[{long}]) >= {LEAST_EVENTS}"
        )
    return "\nor\n".join(pairs)
