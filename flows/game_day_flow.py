"""`headway drill` as a flow: a game day is a list of drills, on the worker that takes it."""

from __future__ import annotations

import datetime
import random

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.profiles import DrillName
from headway.flows.console.environment import default_workspace
from headway.flows.drill.report import DrillReport, document, to_html, written
from headway.flows.drill.running import problem_of, run_drills
from headway.flows.report.written_report import to_markdown
from headway.tasks.core.artifacts import show_markdown
from headway.training.launch.base.gang import LaunchSpec

FOLDER = "drill-reports"
"""Of the workspace. Nothing else stays there."""


class GameDayRequest(BaseModel):
    """Failures to plant in a sandbox."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drills: tuple[DrillName, ...] = Field(
        default=(), title="Drills", description="Failure modes; left empty: all but F8, which has to be named."
    )
    seed: int | None = Field(
        default=None, ge=0, lt=1 << 63, title="Seed", description="Of what happens to whom and when; left empty: drawn."
    )
    launch: LaunchSpec = Field(
        default=LaunchSpec(),
        title="Launcher",
        description="As a pipeline file's `launch`, for two ranks; this machine by default.",
    )
    workspace: str = Field(
        default="",
        title="Workspace",
        description="Where the report is kept. Left empty: the worker's HEADWAY_WORKSPACE, or its project's.",
    )


@flow(name="game-day", flow_run_name="game day", persist_result=False)
def game_day(request: GameDayRequest) -> DrillReport:
    """Plant failures in a sandbox, and judge detection and recovery: an artifact, and a report in the workspace.

    Args:
        request: Which failures, and where the report is kept.

    Raises:
        ConfigError: the launcher does not allow a drill that was named.
        TrainingFailed: a drill missed an objective.
        EnvironmentProblem: nothing could be drilled on this worker, or the workspace cannot be written.
    """
    workspace = Workspace.existing(request.workspace or default_workspace())
    # Before minutes are spent on a report that could not be kept.
    Workspace.create(workspace.uri)
    seed = random.randrange(1 << 31) if request.seed is None else request.seed
    report = run_drills(request.drills, seed, launch=request.launch, workspace=workspace)
    moment = datetime.datetime.fromtimestamp(report.begin_unix_s, datetime.UTC)
    name = f"{FOLDER}/{moment:%Y%m%dT%H%M%SZ}-{seed}"
    workspace.publish(f"{name}.json", canonical_json(document(report)))
    page = workspace.publish(f"{name}.html", to_html(report).encode())
    text = written(report)
    where = f"As a page: {workspace.uri_of(page.path)}"
    show_markdown("game-day", lambda: f"{to_markdown(text)}\n{where}\n", text.word)
    if (problem := problem_of(report)) is not None:
        raise problem
    return report
