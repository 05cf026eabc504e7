"""Freshness: how old the newest row is by the clock now. Pure: the receipt says how new, the gate says how old.

The clock is no input of a receipt: the same receipt may pass today and be refused tomorrow.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.data_contracts.store.documents import ExpectationVerdict, FreshnessObservation

HOUR_S = 3600.0


def evaluate_freshness(newest: Sequence[FreshnessObservation], now_unix_s: float) -> tuple[ExpectationVerdict, ...]:
    """One verdict for each freshness rule of a receipt.

    Args:
        now_unix_s: seconds since 1970-01-01 UTC, by the gate's clock.
    """
    return tuple(_evaluate(each, now_unix_s) for each in newest)


def _evaluate(newest: FreshnessObservation, now_unix_s: float) -> ExpectationVerdict:
    age_s = None if newest.unix_s is None else now_unix_s - newest.unix_s
    # A row too far in the future points to a wrong clock or zone, so that its age says nothing.
    passed = age_s is not None and -newest.max_ahead_s <= age_s <= newest.max_age_s
    return ExpectationVerdict(
        rule_id=newest.rule_id,
        description=newest.description,
        severity=newest.severity,
        passed=passed,
        observed=_observed(age_s),
    )


def _observed(age_s: float | None) -> str:
    if age_s is None:
        return "no row says when it is of"
    if age_s < 0:
        return f"the newest row lies {-age_s / HOUR_S:,.1f} hours in the future"
    return f"the newest row is {age_s / HOUR_S:,.1f} hours old"
