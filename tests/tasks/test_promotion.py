"""Nothing is promoted unproven."""

from __future__ import annotations

import pytest

from data_contracts.documents import Comparison, EvaluationReport, Incomparable, Interval, Link
from tasks.promotion import decide

SHA = "0" * 64


def report(
    over_baseline: Interval, *, difference: Interval | None = None, greater_is_better: bool = False
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
        metrics={"m": interval(1.9, 2.0, 2.1)},
        slices={},
        baselines={"bigram": 3.0},
        gate_baseline="bigram",
        baseline_difference=over_baseline,
        comparison=comparison,
    )


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


CASES = [
    pytest.param(interval(-0.2, -0.1, -0.05), True, id="better"),
    pytest.param(interval(-0.2, -0.1, 0.01), False, id="better only by noise"),
    pytest.param(interval(0.0, 0.0, 0.0), False, id="equal"),
    pytest.param(interval(0.05, 0.1, 0.2), False, id="worse"),
]


@pytest.mark.parametrize(("difference", "promote"), CASES)
def test_a_first_model_must_beat_its_baseline_beyond_doubt(difference: Interval, promote: bool) -> None:
    verdict = decide(report(difference))
    assert verdict.promote is promote
    assert "bigram" in verdict.reason


@pytest.mark.parametrize(("difference", "promote"), CASES)
def test_a_challenger_must_beat_the_champion_on_the_same_examples(difference: Interval, promote: bool) -> None:
    verdict = decide(report(interval(-1.0, -0.9, -0.8), difference=difference))
    assert verdict.promote is promote
    assert "champion" in verdict.reason


def test_what_cannot_be_compared_with_the_champion_is_not_promoted_however_good_it_is() -> None:
    better = report(interval(-1.0, -0.9, -0.8))
    assert decide(better).promote
    champion = Link(kind="registration", sha256=SHA)
    unread = better.model_copy(update={"incomparable": Incomparable(champion=champion, reason="it reads no today")})
    verdict = decide(unread)
    assert not verdict.promote
    for said in ("cannot be compared with the champion, which stays: it reads no today", "registry.model", "bigram"):
        assert said in verdict.reason


def test_where_greater_is_better_the_comparison_turns_round() -> None:
    better, worse = interval(0.05, 0.1, 0.2), interval(-0.2, -0.1, -0.05)
    assert decide(report(worse, difference=better, greater_is_better=True)).promote
    assert not decide(report(better, difference=worse, greater_is_better=True)).promote
    assert decide(report(better, greater_is_better=True)).promote
    assert not decide(report(worse, greater_is_better=True)).promote
