"""`headway report` as a flow, for a deployment that makes one when a week, month or quarter is over."""

from __future__ import annotations

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from headway.data_contracts.store.publication import Workspace
from headway.flows.config.calendar_periods import Period
from headway.flows.config.profiles import PricesSpec
from headway.flows.console.environment import default_workspace
from headway.flows.periods.page import written
from headway.flows.periods.reading import day, read_period
from headway.flows.periods.record import PeriodReport
from headway.flows.report.written_report import to_html, to_markdown
from headway.tasks.core.artifacts import show_markdown


class ReportRequest(BaseModel):
    """A period of a workspace."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    period: Period = Field(default="week", title="Period", description="What the report is about.")
    of: str = Field(
        default="", title="A day of it", description="Such as 2026-11-26. Left empty: the last one that is over."
    )
    prices: PricesSpec = Field(
        default=PricesSpec(), title="Prices", description="What devices cost; without any, none are told."
    )
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )


@flow(name="report", flow_run_name="{request.period}", persist_result=False)
def report(request: ReportRequest) -> PeriodReport:
    """Report on a week, month or quarter: an artifact, and a page in the workspace.

    Args:
        request: Which period of which workspace.
    """
    workspace = Workspace.existing(request.workspace or default_workspace())
    found = read_period(workspace.uri, request.period, request.prices, day(request.of) if request.of else None)
    text = written(found, has_prices=bool(request.prices.device_hour_usd))
    page = workspace.publish(f"period-reports/{found.period}-{found.begin}.html", to_html(text).encode())
    where = f"As a page: {workspace.uri_of(page.path)}"
    show_markdown(f"report-{found.period}", lambda: f"{to_markdown(text)}\n{where}\n", text.word)
    return found
