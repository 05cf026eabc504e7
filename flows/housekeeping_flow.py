"""`headway clean` and `headway scrub` as a flow, for a daily deployment.

What killed processes left behind ends, what nothing needs is named or goes, and what is needed is read again.
"""

from __future__ import annotations

import io

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.clean import CleanReport, clean, end_killed, print_clean
from headway.flows.console.console import plain_console
from headway.flows.console.environment import default_workspace
from headway.flows.monitoring.pushing import push_quietly
from headway.flows.prefect_api.flow_run_claims import end_killed_flow_runs
from headway.flows.show.scrub import damage, print_scrub, scrub_workspace
from headway.tasks.core.artifacts import show_markdown


class HousekeepingRequest(BaseModel):
    """Tidy a workspace, or say what tidying would do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    apply: bool = Field(
        default=False,
        title="Take it away",
        description="Off: only say what would go. MLflow's runs that nobody trains any more end as KILLED either way.",
    )
    keep_last: int = Field(
        default=3, ge=0, title="Keep last", description="Finished runs of each pipeline that stay however old they are."
    )
    older_than_days: int = Field(
        default=30, ge=1, title="Older than, in days", description="What was written or used since stays."
    )
    scrub_gb: float = Field(
        default=100.0,
        ge=0.0,
        allow_inf_nan=False,
        title="Read again, in GB",
        description="About so much of what champions and unfinished runs need, what nobody read for longest first. "
        "A file that is damaged fails the flow run.",
    )
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )


@flow(name="housekeeping", flow_run_name="housekeeping", persist_result=False)
def housekeeping(request: HousekeepingRequest) -> CleanReport:
    """Tidy a workspace, or say what tidying would do, and read again what it must not lose.

    Args:
        request: How much is taken away, and how much is read.

    Raises:
        IntegrityError: a file that a champion or an unfinished run needs is damaged.
    """
    workspace = request.workspace or default_workspace()
    end_killed_flow_runs()
    # Before cleaning, which leaves alone whatever MLflow shows as RUNNING.
    killed = end_killed(Workspace(workspace))
    report = clean(
        workspace, apply=request.apply, keep_last=request.keep_last, older_than=f"{request.older_than_days}d"
    )
    report = report.model_copy(update={"mlflow_killed": [*killed, *report.mlflow_killed]})
    page = io.StringIO()
    print_clean(report, plain_console(page, width=100))
    show_markdown("housekeeping", lambda: plain_text.code_block(page.getvalue()), "What went, or would go")
    try:
        if request.scrub_gb:
            _scrub(workspace, request.scrub_gb)
    finally:
        push_quietly(workspace)
    return report


def _scrub(workspace: str, max_gb: float) -> None:
    report = scrub_workspace(workspace, max_gb)
    page = io.StringIO()
    print_scrub(report, plain_console(page, width=100))
    show_markdown("scrub", lambda: plain_text.code_block(page.getvalue()), "What was read again, and what is damaged")
    if (damaged := damage(report, workspace)) is not None:
        raise damaged
