"""A report that a deployment makes lies in the workspace as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.flows.config.profiles import PricesSpec
from headway.flows.report_flow import ReportRequest, report
from tests.flows.accounts.lives import Life


def test_the_page_of_a_period_lies_in_the_workspace_and_is_made_again_in_its_place(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.flow("now", 1_800_000_000.0, 1_800_000_060.0, has_run=False)
    prices = PricesSpec(device_hour_usd={"any": 60.0})
    request = ReportRequest(workspace=life.workspace.uri, period="month", of="2027-01-15", prices=prices)
    found = report.fn(request)
    assert found.now.num_flow_runs == 1 and found.now.cost.usd == pytest.approx(1.0)
    page = life.workspace.read("period-reports/month-2027-01-01.html")
    assert b"Headway: month from 2027-01-01" in page and b"1.00" in page
    report.fn(request)
    assert life.workspace.names("period-reports") == ["month-2027-01-01.html"]


def test_a_form_that_makes_no_sense_is_refused() -> None:
    for given in ({"period": "year"}, {"prices": {"device_hour_usd": {"any": -1}}}, {"to": "x"}):
        with pytest.raises(ValidationError):
            ReportRequest.model_validate(given)
