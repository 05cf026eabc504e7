"""Costs follow from accounts: what devices were held for, times the price of their kind, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from headway.flows.accounts.cost import By, CostLine, costs, total
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.config.profiles import PricesSpec
from tests.flows.accounts.lives import LOST, RUN, Life, numbered

HOUR_S = 3600.0
PRICES = PricesSpec(device_hour_usd={"cpu": 36.0}, device_watts={"any": 100.0}, grams_co2_per_kwh=400.0)
"""One US cent a device-second."""


@pytest.fixture
def accounts(tmp_path: Path) -> list[FlowAccount]:
    """Two flow runs of a run on two devices, with a window between them and a failure; and one that was refused."""
    life = Life(tmp_path)
    life.flow("a", 0.0, 30.0, stop="window closed")
    life.attempt("a", 0.0, 10.0, numbered(1, 8, 2.0), failure=LOST)
    life.attempt("a", 10.0, 30.0, numbered(5, 18, 14.0))
    life.flow("b", 1_000.0, 1_020.0)
    life.attempt("b", 1_000.0, 1_020.0, numbered(19, 28, 1_005.0))
    life.flow("c", 2_000.0, 2_010.0, failed=("ContractViolation", "contract", "validate"), has_run=False)
    settle(life.workspace)
    return list(all_accounts(life.workspace))


def by_name(accounts: list[FlowAccount], by: By) -> dict[str, CostLine]:
    return {line.name: line for line in costs(accounts, by, PRICES)}


def test_a_run_costs_what_its_devices_were_held_for_and_a_closed_window_is_free(accounts: list[FlowAccount]) -> None:
    line = by_name(accounts, "run")[RUN]
    assert line.device_hours * HOUR_S == pytest.approx(2 * (30.0 + 20.0))
    assert line.usd == pytest.approx(1.00)
    assert line.productive_usd == pytest.approx(0.01 * 2 * 28)
    # From step 8's end to step 9's begin: 8 seconds of starting and of steps 5 to 8 made again.
    assert line.wasted_usd == pytest.approx(0.01 * 2 * 8)
    assert line.num_tokens == 280 and line.usd_per_million_tokens == pytest.approx(1.00 / 280 * 1e6)
    assert line.joules == pytest.approx(100 * 100.0)
    assert line.grams_co2 == pytest.approx(100 * 100.0 / 3.6e6 * 400.0)


@pytest.mark.parametrize("by", get_args(By))
def test_lines_of_any_kind_sum_to_the_same_whole(accounts: list[FlowAccount], by: By) -> None:
    whole = total(costs(accounts, by, PRICES), len(accounts))
    assert whole.num_flow_runs == 3
    assert whole.usd == pytest.approx(1.10)
    assert whole.productive_usd == pytest.approx(0.56) and whole.wasted_usd == pytest.approx(0.16)
    assert whole.joules == pytest.approx(110 * 100.0)


def test_by_cause_every_device_second_is_productive_overhead_or_a_failure_s(accounts: list[FlowAccount]) -> None:
    lines = by_name(accounts, "cause")
    assert lines["infrastructure"].usd == pytest.approx(0.16)
    assert lines["productive"].usd == pytest.approx(0.56)
    assert lines["overhead"].usd == pytest.approx(1.10 - 0.16 - 0.56)


def test_a_kind_without_a_price_is_free_and_one_without_power_draws_nothing_that_is_known(
    accounts: list[FlowAccount],
) -> None:
    (line, *_) = costs(accounts, "pipeline", PricesSpec(device_hour_usd={"NVIDIA H100": 3.0}))
    assert (line.usd, line.joules, line.grams_co2) == (0.0, None, None) and line.device_hours > 0
    (line, *_) = costs(accounts, "pipeline", PricesSpec(device_hour_usd={"any": 36.0}))
    assert line.usd == pytest.approx(1.10)


def test_months_are_told_apart_in_utc(accounts: list[FlowAccount]) -> None:
    later = accounts[0].model_copy(update={"begin_unix_s": 2_678_400.0})
    assert set(by_name([*accounts, later], "month")) == {"1970-01", "1970-02"}


def test_no_account_costs_nothing() -> None:
    assert costs([], "pipeline", PRICES) == []
    assert total([], 0).usd == 0.0
