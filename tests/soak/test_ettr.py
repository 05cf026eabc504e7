"""The prediction that a soak is held against, itself held against what it is made of."""

from __future__ import annotations

import random

import pytest

from tests.soak.ettr import interval_s, predicted


def simulated(*, every_s: float, stall_s: float, durable_s: float, recovery_s: float, mtbf_s: float) -> float:
    """Faults of a Poisson process, an event at a time. The next one strikes only once the last is mended."""
    draw, wall_s, kept_s = random.Random(0), 0.0, 0.0
    for _ in range(20_000):
        until_s = draw.expovariate(1 / mtbf_s)
        intervals, rest_s = divmod(until_s, every_s + stall_s)
        # Saved at an interval's end, and lost if the fault strikes before it is durable.
        saved = intervals if rest_s >= durable_s else max(intervals - 1, 0)
        kept_s += saved * every_s
        wall_s += until_s + recovery_s
    return kept_s / wall_s


@pytest.mark.parametrize(
    "case",
    [
        {"every_s": 2.0, "stall_s": 0.02, "durable_s": 0.1, "recovery_s": 4.0},
        {"every_s": 5.0, "stall_s": 0.2, "durable_s": 0.5, "recovery_s": 3.0},
    ],
)
def test_the_prediction_is_that_of_a_simulation_of_single_faults(case: dict[str, float]) -> None:
    # The soak counts faults over all of the time; the simulation over that between recoveries.
    of_all = predicted(**case, mtbf_s=60.0 + case["recovery_s"])
    assert of_all == pytest.approx(simulated(**case, mtbf_s=60.0), abs=0.006)


@pytest.mark.parametrize("stall_s", [0.01, 0.1, 1.0])
def test_the_chosen_interval_loses_least(stall_s: float) -> None:
    best_s = interval_s(stall_s, 3600.0)

    def of(every_s: float) -> float:
        return predicted(every_s=every_s, stall_s=stall_s, durable_s=0.0, recovery_s=5.0, mtbf_s=3600.0)

    assert of(best_s) > of(1.2 * best_s) and of(best_s) > of(best_s / 1.2)
