"""A probe as a flow, for a deployment that makes one each hour: it fails where the probe does."""

from __future__ import annotations

import datetime

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import length
from headway.flows.accounts.probe_records import ProbeRecord
from headway.flows.config.profiles import PROBE_WITHIN_S
from headway.flows.console.environment import default_workspace
from headway.flows.probe.probing import problem_of, run_probe
from headway.tasks.core.artifacts import show_markdown
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger_lines import LARGEST


class ProbeRequest(BaseModel):
    """A small retrain of made-up data, through every stage."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    launch: LaunchSpec = Field(
        default=LaunchSpec(), title="Launcher", description="As a pipeline file's `launch`; this machine by default."
    )
    interval_s: float = Field(
        default=3600.0,
        gt=0,
        lt=LARGEST,
        title="Interval",
        description="Seconds until the next one is due; later is an alert.",
    )
    within_s: float = Field(
        default=PROBE_WITHIN_S,
        gt=0,
        lt=LARGEST,
        title="Within",
        description="Seconds after which it is ended, and has failed.",
    )
    workspace: str = Field(
        default="", title="Workspace", description="Left empty: the worker's HEADWAY_WORKSPACE, or its project's."
    )


@flow(name="probe", flow_run_name="probe {request.launch.launcher}", persist_result=False)
def probe(request: ProbeRequest) -> ProbeRecord:
    """Retrain a small pipeline of made-up data, and keep what came of it in the workspace.

    Args:
        request: On which launcher, and for which workspace.

    Raises:
        TrainingFailed: the probe failed.
        EnvironmentProblem: the workspace cannot be written.
    """
    workspace = Workspace.create(request.workspace or default_workspace())
    record = run_probe(workspace, request.launch, interval_s=request.interval_s, within_s=request.within_s)
    problem = problem_of(record, workspace)
    word = "succeeded" if problem is None else f"failed: {problem}"
    when = datetime.datetime.fromtimestamp(record.begin_unix_s, datetime.UTC)
    took = length(record.end_unix_s - record.begin_unix_s)
    text = f"{when:%Y-%m-%d %H:%M} UTC, {took}: {word}\n"
    show_markdown(f"probe-{record.launcher}", lambda: text, "The newest probe")
    if problem is not None:
        raise problem
    return record
