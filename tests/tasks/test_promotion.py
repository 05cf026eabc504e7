"""Nothing is promoted unproven."""

from __future__ import annotations

import pytest

from data_contracts.documents import Comparison, EvaluationReport, Interval, Link
from tasks.promotion import decide

SHA = "0" * 64


def report(
    own: Interval, *, baseline: float = 3.0, difference: Interval | None = None, greater_is_better: bool = False
) -> EvaluationReport:
    comparison = None
    if difference is not None:
        champion = Link(kind="registration", sha256=SHA)
        comparison = Comparison(champion=champion, metric="m", champion_value=2.0, difference=difference)
    return EvaluationReport(
        checkpoint=Link(kind="checkpoint", sha256=SHA),
        manifest=Link(kind="manifest", sha256=SHA),
        split="heldout",
        examples_sha256=SHA,
        num_examples=10,
        metric="m",
        greater_is_better=greater_is_better,
        metrics={"m": own},
        slices={},
        baselines={"bigram": baseline},
        gate_baseline="bigram",
        comparison=comparison,
    )


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


@pytest.mark.parametrize(
    ("own", "promote"),
    [
        pytest.param(interval(1.9, 2.0, 2.1), True, id="beyond doubt"),
        pytest.param(interval(2.8, 2.9, 3.1), False, id="better only by noise"),
        pytest.param(interval(3.1, 3.2, 3.3), False, id="worse"),
    ],
)
def test_a_first_model_must_beat_its_baseline_beyond_doubt(own: Interval, promote: bool) -> None:
    assert decide(report(own)).promote is promote


@pytest.mark.parametrize(
    ("difference", "promote"),
    [
        pytest.param(interval(-0.2, -0.1, -0.05), True, id="better"),
        pytest.param(interval(-0.2, -0.1, 0.01), False, id="better only by noise"),
        pytest.param(interval(0.0, 0.0, 0.0), False, id="equal"),
        pytest.param(interval(0.05, 0.1, 0.2), False, id="worse"),
    ],
)
def test_a_challenger_must_beat_the_champion_on_the_same_examples(difference: Interval, promote: bool) -> None:
    assert decide(report(interval(1.8, 1.9, 2.0), difference=difference)).promote is promote


def test_a_challenger_that_beats_the_baseline_but_not_the_champion_stays_challenger() -> None:
    verdict = decide(report(interval(1.0, 1.1, 1.2), baseline=9.0, difference=interval(0.1, 0.2, 0.3)))
    assert not verdict.promote
    assert "champion" in verdict.reason


def test_where_greater_is_better_the_comparison_turns_round() -> None:
    own = interval(0.8, 0.9, 0.95)
    better, worse = interval(0.05, 0.1, 0.2), interval(-0.2, -0.1, -0.05)
    assert decide(report(own, difference=better, greater_is_better=True)).promote
    assert not decide(report(own, difference=worse, greater_is_better=True)).promote
    assert decide(report(own, baseline=0.5, greater_is_better=True)).promote
    assert not decide(report(own, baseline=0.85, greater_is_better=True)).promote
