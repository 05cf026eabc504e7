"""What is said of the best two of a search."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.documents import Interval
from headway.flows.trials.report import verdict_text
from headway.tasks.stages.finalists import FinalistsVerdict
from headway.tasks.stages.search import SearchResult
from tests.tasks.stages.test_search import APART, verdict

BOTH = Interval(value=-0.05, low=-0.1, high=0.01)


def said(given: FinalistsVerdict | None) -> str:
    """With trial 1 ahead of trial 2 by its figure."""
    trials: list[Any] = [
        SimpleNamespace(figures={40: None}, result=SimpleNamespace(error=None, trial=SimpleNamespace(number=number)))
        for number in (1, 2)
    ]
    if given is not None and given.keeps_second:
        trials.reverse()
    return verdict_text(SearchResult(trials=trials, levels=(40,), verdict=given))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "trial 1 is better than trial 2: their intervals lie apart"),
        (verdict(APART), "decided: trial 1 less 2, paired: -0.0500 [-0.1000, -0.0100] log_loss"),
        (
            verdict(APART, greater_is_better=True),
            "decided: trial 1 less 2, paired: -0.0500 [-0.1000, -0.0100] log_loss, so trial 2 stays",
        ),
        (
            verdict(BOTH),
            (
                "undecided: trial 1 less 2, paired: -0.0500 [-0.1000, +0.0100] log_loss; they are of one size, so "
                "trial 1 stays, whose figure is better"
            ),
        ),
        (
            verdict(BOTH, 1200, 900),
            (
                "undecided: trial 1 less 2, paired: -0.0500 [-0.1000, +0.0100] log_loss; trial 2 stays, the smaller "
                "one (900 bytes beside 1,200)"
            ),
        ),
        (
            verdict(APART, failed=(2, 0)),
            (
                "decided: trial 1 failed with seeds 1, 2, so trial 2 stays; trial 1 less 2, paired: -0.0500 [-0.1000, "
                "-0.0100] log_loss"
            ),
        ),
        (
            verdict(APART, failed=(1, 1)),
            (
                "decided: trial 1 less 2, paired: -0.0500 [-0.1000, -0.0100] log_loss; trial 1 failed with seed 1 and "
                "trial 2 failed with seed 1"
            ),
        ),
    ],
)
def test_a_verdict_says_what_was_measured_and_why_one_stays(given: FinalistsVerdict | None, text: str) -> None:
    assert said(given) == text


def test_seeds_are_named_where_there_is_more_than_one() -> None:
    several = verdict(APART).model_copy(update={"seeds": (0, 1, 2)})
    assert "paired over 3 seeds: -0.0500" in said(several)
