"""Error budgets: how fast an objective's may be spent before somebody hears of it. Pure.

Windows and rates are those of the Site Reliability Workbook (Beyer et al., 2018, "Alerting on SLOs"). Retrains are few,
and a ratio of few events says nothing: each long window needs `LEAST_EVENTS`. Single failures have alerts of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headway.flows.accounts.objectives import LEAST_EVENTS, WINDOW_DAYS, Objective, Severity

BUDGET_WINDOW = f"{WINDOW_DAYS}d"
BURN_RATES: Mapping[Severity, tuple[tuple[float, str, str], ...]] = MappingProxyType(
    {
        "page": ((14.4, "1h", "5m"), (6.0, "6h", "30m")),
        "ticket": ((3.0, "1d", "2h"), (1.0, "3d", "6h")),
    }
)
"""The budget is spent so many times too fast over the long window, and still so over the short one."""


def windows() -> tuple[str, ...]:
    """All over which the share of bad events is recorded, the shortest first."""
    pairs = [pair[1:] for rates in BURN_RATES.values() for pair in rates]
    named = dict.fromkeys([*sorted({window for pair in pairs for window in pair}, key=_seconds), BUDGET_WINDOW])
    return tuple(named)


def _seconds(window: str) -> int:
    return int(window[:-1]) * {"m": 60, "h": 3600, "d": 86400}[window[-1]]


def bad_share(objective: Objective, window: str) -> str:
    """The name of the series that `rules` records."""
    return f"{objective.level}:{objective.key}_bad:share_{window}"


def burning(objective: Objective, severity: Severity) -> str:
    """The condition: for one of the pairs, both windows are over the rate, and the long one has enough events."""
    of = f'{{job_class="{objective.job_class}"}}' if objective.job_class else ""
    pairs = []
    for rate, long, short in BURN_RATES[severity]:
        limit = f"{rate:g} * {1 - objective.target:.3g}"
        pairs.append(
            f"{bad_share(objective, long)}{of} > {limit}\n"
            f"and {bad_share(objective, short)}{of} > {limit}\n"
            f"and increase({objective.level}:{objective.key}:total{of}[{long}]) >= {LEAST_EVENTS}"
        )
    return "\nor\n".join(pairs)
