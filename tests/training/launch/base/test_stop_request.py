"""What a run may cost is a length of time until its devices are held, and a moment from then on."""

from __future__ import annotations

import math

import pytest

from headway.data_contracts.store.errors import CostBoundReached, RunStopped
from headway.training.launch.base.protocol import STOP_REQUEST
from headway.training.launch.base.stop_request import StopRequest, continuing

PAID = StopRequest(at_unix_s=1000.0, at_step=7, reason="window closed", paid_s=300.0, paid_detail="usd_per_run: 1.00")


def test_what_is_paid_for_ends_at_a_moment_once_the_devices_are_held() -> None:
    held = PAID.holding_devices(500.0, paid_already_s=100.0)
    assert (held.at_unix_s, held.at_step, held.reason) == (700.0, 7, "cost bound reached")
    assert held.paid_s == math.inf
    assert held.why == "cost bound reached (usd_per_run: 1.00)"


def test_a_window_that_closes_before_holds() -> None:
    held = PAID.holding_devices(900.0, paid_already_s=0.0)
    assert (held.at_unix_s, held.reason, held.paid_s) == (1000.0, "window closed", math.inf)
    assert StopRequest().holding_devices(5.0, 3.0) == StopRequest()


def test_ranks_hear_of_a_moment_alone() -> None:
    """Those of a run that was frozen before costs were bound know no more fields."""
    environment = PAID.holding_devices(500.0, 0.0).environment()
    assert "paid" not in environment[STOP_REQUEST]
    assert StopRequest.from_environment(environment).at_unix_s == 800.0


def test_a_queue_spends_nothing_of_it() -> None:
    assert PAID.if_due() is not None, "its window is over"
    assert StopRequest(paid_s=0.0).if_due() is None


def test_the_reason_decides_the_error_and_its_advice() -> None:
    with pytest.raises(CostBoundReached) as reached:
        StopRequest(at_unix_s=1.0, reason="cost bound reached").require_time("training", advice="")
    assert reached.value.exit_code == 79
    with pytest.raises(RunStopped) as closed:
        PAID.require_time("training", advice="")
    assert type(closed.value) is RunStopped
    assert continuing("retrain", "window closed") == "`retrain` continues it."
    assert "once that bound in the pipeline file lets it" in continuing("retrain", "cost bound reached")
