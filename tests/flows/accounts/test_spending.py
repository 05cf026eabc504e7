"""What may still be spent is the tightest bound less what accounts say; queues and closed windows are free."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.data_contracts.store.errors import ConfigError, CostBoundReached
from headway.flows.accounts import spending
from headway.flows.accounts.kept_accounts import settle
from headway.flows.accounts.spending import BoundSpending, expected_kind, kind_here, month_of, usd_per_device_s
from headway.flows.config.cost_bound import CostBoundSpec
from headway.flows.config.profiles import PricesSpec
from headway.training.launch.base.stop_request import StopRequest
from tests.flows.accounts.lives import RUN, Life, numbered

CENT_A_SECOND = PricesSpec(device_hour_usd={"cpu": 36.0})
NOW_S = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC).timestamp()
OCTOBER_S = datetime.datetime(2026, 10, 31, 23, 59, tzinfo=datetime.UTC).timestamp()


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending.time, "time", lambda: NOW_S)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """50 seconds on two devices in November, with a queue of 5 s besides: 1.00 USD; 0.40 of another run in October."""
    life = Life(tmp_path)
    life.flow("a", NOW_S - 900, NOW_S - 845, ("devices.wait", NOW_S - 900, NOW_S - 895), stop="window closed")
    life.attempt("a", NOW_S - 895, NOW_S - 845, numbered(1, 10, NOW_S - 890))
    life.flow("october", OCTOBER_S, OCTOBER_S + 40, has_run=False)
    settle(life.workspace)
    return life


def bound(life: Life, started_unix_s: float = NOW_S, **spec: float) -> BoundSpending:
    return BoundSpending(
        workspace=life.workspace,
        pipeline="p",
        spec=CostBoundSpec(**spec),
        prices=CENT_A_SECOND,
        devices=2,
        kind="cpu",
        continued_by="headway retrain p",
        started_unix_s=started_unix_s,
    )


def test_a_run_may_cost_what_its_earlier_flow_runs_have_left_of_the_bound(life: Life) -> None:
    assert bound(life, usd_per_run=1.50).left(RUN).usd == pytest.approx(0.50)
    assert bound(life, usd_per_run=1.50).left("f" * 16).usd == pytest.approx(1.50)


def test_time_below_zero_in_an_account_gives_nothing_back(life: Life) -> None:
    (path,) = (life.workspace.local_root / "accounts" / RUN).glob("*.json")
    account = json.loads(path.read_text())
    account["goodput"]["parts_device_s"] |= {"start": -1e6}
    path.write_text(json.dumps(account))
    assert bound(life, usd_per_run=1.50).left(RUN).usd <= 1.50
    assert bound(life, usd_per_month=1.50).left(RUN).usd <= 1.50


def test_a_month_counts_all_runs_of_the_pipeline_that_began_in_it_and_no_other(life: Life) -> None:
    life.flow("refused", NOW_S - 500, NOW_S - 490, has_run=False)
    assert bound(life, usd_per_month=2.00).left("").usd == pytest.approx(2.00 - 1.00 - 0.10)
    assert bound(life, started_unix_s=NOW_S + 12 * 86_400, usd_per_month=2.00).left("").usd == pytest.approx(2.00), (
        "December"
    )
    other = bound(life, usd_per_month=2.00)
    other.pipeline = "other"
    assert other.left("").usd == pytest.approx(2.00)


def test_the_tighter_of_two_bounds_holds_and_is_named(life: Life) -> None:
    assert bound(life, usd_per_run=1.20, usd_per_month=9).left(RUN).bound == "usd_per_run: 1.20"
    left = bound(life, usd_per_run=9, usd_per_month=1.20).left(RUN)
    assert left.bound == "usd_per_month: 1.20 in 2026-11" and left.usd == pytest.approx(0.20)


def test_what_is_left_is_how_long_the_devices_may_be_held(life: Life) -> None:
    stop = bound(life, usd_per_run=1.50).bounding(StopRequest(at_step=7), RUN)
    assert stop.paid_s == pytest.approx(25.0) and stop.at_step == 7
    held = stop.holding_devices(NOW_S + 3600, paid_already_s=5.0)
    assert (held.at_unix_s, held.reason) == (pytest.approx(NOW_S + 3620), "cost bound reached"), "the queue was free"


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ({"usd_per_run": 1.0}, r"Raise `cost_bound.usd_per_run` in the pipeline file\. `headway retrain p` then"),
        ({"usd_per_month": 0.9}, r"Raise `cost_bound.usd_per_month` in the pipeline file or wait for the next month"),
    ],
)
def test_what_is_spent_is_refused_with_what_to_do(life: Life, spec: dict[str, float], advice: str) -> None:
    with pytest.raises(CostBoundReached, match=advice) as refused:
        bound(life, **spec).bounding(StopRequest(), RUN)
    assert refused.value.exit_code == 79 and refused.value.reason == "cost bound reached"
    assert "training was not started" in refused.value.what


def test_what_would_not_pay_for_a_start_is_refused_too(life: Life) -> None:
    bound(life, usd_per_run=1.11).require("training", RUN)  # a start took 5 s, which were 0.10
    with pytest.raises(CostBoundReached, match=r"What is left, 0\.09, is less than a start of it cost before"):
        bound(life, usd_per_run=1.09).require("training", RUN)


def test_what_this_flow_run_takes_is_spent_and_its_waits_are_not(life: Life) -> None:
    life.flow("now", NOW_S - 30, None, ("devices.wait", NOW_S - 30, NOW_S - 10), stop="")
    own = bound(life, started_unix_s=NOW_S - 30, usd_per_run=1.50)
    own.flow_run = "now"
    assert own.left(RUN, is_exact=True).usd == pytest.approx(0.50 - 0.02 * 10)
    own.spec = CostBoundSpec(usd_per_run=1.35)
    own.require("evaluation", RUN)


def test_each_of_several_trials_at_once_spends_what_its_own_devices_cost(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    goodput = SimpleNamespace(parts_s={"productive": 10.0}, parts_device_s={"productive": 40.0, "queue": 99.0})
    goodput.end_unix_s = NOW_S
    monkeypatch.setattr(spending, "account_so_far", lambda *_: SimpleNamespace(goodput=goodput))
    own = bound(life, usd_per_month=5.0)
    before_usd, own.flow_run = own.left(RUN, is_exact=True).usd, "now"
    goodput.parts_device_s["productive"] = 60.0
    assert own.left(RUN, is_exact=True).usd == pytest.approx(before_usd - 60 * 0.01)


def test_what_comes_after_a_registration_is_another_life_of_the_run(life: Life) -> None:
    life.flow("b", NOW_S - 800, NOW_S - 790, ("stage.register", NOW_S - 791, NOW_S - 790))
    settle(life.workspace)
    assert bound(life, usd_per_run=1.50).left(RUN).usd == pytest.approx(1.50)


def test_trials_are_no_life_of_a_run_and_count_to_the_month(life: Life) -> None:
    trials = bound(life, usd_per_run=0.10, usd_per_month=9.0)
    trials.is_one_run = False
    assert trials.left(RUN).bound.startswith("usd_per_month")


def test_a_kind_without_a_price_is_refused_and_an_unknown_one_is_the_dearest() -> None:
    prices = PricesSpec(device_hour_usd={"cpu": 0.36, "NVIDIA H100": 3.6})
    assert usd_per_device_s(prices, "") == pytest.approx(0.001)
    assert usd_per_device_s(prices, "cpu") == pytest.approx(0.0001)
    with pytest.raises(ConfigError, match="no price is declared of NVIDIA H200"):
        usd_per_device_s(prices, "NVIDIA H200")


def test_devices_are_this_machine_s_or_those_of_the_last_time(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0000:00").mkdir()
    (tmp_path / "0000:00" / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n")
    monkeypatch.setattr(spending, "NVIDIA", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert kind_here() == "NVIDIA H100 80GB HBM3"
    assert expected_kind(life.workspace, "p", is_here=True) == "NVIDIA H100 80GB HBM3"
    assert expected_kind(life.workspace, "p", is_here=False) == "cpu"
    assert expected_kind(life.workspace, "new", is_here=False) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert kind_here() == "cpu"


def test_months_are_those_of_utc() -> None:
    assert month_of(OCTOBER_S) == "2026-10" and month_of(OCTOBER_S + 61) == "2026-11"
    assert time.time() == NOW_S
