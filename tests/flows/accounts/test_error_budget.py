"""An error budget is spent when more failed within 30 days than the objective allows, of enough to say so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.flows.accounts.error_budget import spent_budget
from headway.flows.accounts.objectives import LEAST_EVENTS
from tests.flows.accounts.lives import Life

DAY_S = 86400.0
BROKE, REFUSED = ("RanksLost", "infrastructure", "launch"), ("ContractViolation", "contract", "validate")


def ended(
    life: Life,
    number: int,
    *,
    days_ago: float = 1.0,
    failed: tuple[str, str, str] | None = None,
    job_class: str = "standard",
) -> None:
    kind = "good" if failed is None else failed[1]
    for each in range(number):
        begin_s = time.time() - days_ago * DAY_S + each
        of = {"job_class": job_class}
        name = f"{job_class}-{kind}-{days_ago}-{each}"
        life.flow(name, begin_s, begin_s + 0.5, failed=failed, has_run=False, process=of)


@pytest.mark.parametrize(
    ("good", "broke", "refused", "is_spent"),
    [
        (LEAST_EVENTS, 0, 0, False),
        (LEAST_EVENTS - 1, 1, 0, True),
        (LEAST_EVENTS - 2, 1, 0, False),
        (0, 0, LEAST_EVENTS, False),
        (LEAST_EVENTS, 0, LEAST_EVENTS, False),
        (99, 1, 0, False),
        (98, 1, 0, True),
    ],
    ids=[
        "none failed",
        "one of ten",
        "one of nine",
        "data alone",
        "data beside good ones",
        "one of a hundred",
        "of 99",
    ],
)
def test_it_is_spent_by_failures_that_are_neither_a_persons_nor_the_datas(
    tmp_path: Path, good: int, broke: int, refused: int, is_spent: bool
) -> None:
    life = Life(tmp_path)
    ended(life, good)
    ended(life, broke, failed=BROKE)
    ended(life, refused, failed=REFUSED)
    why = spent_budget(life.workspace, "standard")
    assert bool(why) == is_spent, why
    assert not is_spent or f"{broke} of {good + broke} flow runs failed within 30 days" in why


def test_what_failed_earlier_is_forgotten(tmp_path: Path) -> None:
    life = Life(tmp_path)
    ended(life, LEAST_EVENTS)
    ended(life, 5, days_ago=31.0, failed=BROKE)
    assert spent_budget(life.workspace, "standard") == ""
    ended(life, 1, days_ago=29.0, failed=BROKE)
    assert spent_budget(life.workspace, "standard")


def test_a_class_is_held_to_its_own_objective_and_spends_no_other_s(tmp_path: Path) -> None:
    life = Life(tmp_path)
    for job_class in ("critical", "experiment"):
        ended(life, 149, job_class=job_class)
        ended(life, 1, failed=BROKE, job_class=job_class)
    assert "budget of critical retrains is spent: 1 of 150" in spent_budget(life.workspace, "critical")
    assert "0.5% may" in spent_budget(life.workspace, "critical")
    assert spent_budget(life.workspace, "experiment") == "" == spent_budget(life.workspace, "standard")
