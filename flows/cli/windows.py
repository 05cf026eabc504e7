"""The commands about windows: see the calendar, skip, unskip, open."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from headway.flows.config.request import RetrainRequest
from headway.flows.console.environment import default_workspace
from headway.flows.console.options import AsJson, Pipeline, Why, WorkspaceUri
from headway.flows.console.output import print_json, print_line

app = typer.Typer(rich_markup_mode=None)

InWindow = Annotated[
    bool, typer.Option("--in-window", help="As schedules do: outside the pipeline's windows nothing runs, exit 77.")
]
Until = Annotated[
    str,
    typer.Option(
        "--until",
        help="A date or time within a year, such as 2030-01-31T06:00; on the windows' clock without offset.",
    ),
]


@app.command("windows")
def windows(
    pipeline: Pipeline,
    ahead: Annotated[str, typer.Option("--next", help="How far to look: 36h, 14d, 2w.")] = "14d",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Show when a pipeline may retrain. Also what was decided, and when the next run will be done."""
    from headway.flows.show.calendar import make_calendar, print_calendar
    from headway.flows.windows.admission import open_pipeline
    from headway.flows.windows.moments import length

    far = length(ahead, "--next")
    calendar = make_calendar(open_pipeline(_request(pipeline, workspace)), _now(), far)
    if as_json:
        print_json(calendar)
    else:
        print_calendar(calendar)


@app.command("skip-window")
def skip_window(
    pipeline: Pipeline,
    why: Why,
    until: Until = "",
    skip_next: Annotated[bool, typer.Option("--next", help="The window that opens next.")] = False,
    workspace: WorkspaceUri = "",
) -> None:
    """Skip windows until a moment, or the next one; on record."""
    from headway.flows.show.decisions import skip
    from headway.flows.windows.admission import open_pipeline

    print_line(skip(open_pipeline(_request(pipeline, workspace)), _now(), until=until, skip_next=skip_next, why=why))


@app.command("unskip-window")
def unskip_window(pipeline: Pipeline, why: Why, workspace: WorkspaceUri = "") -> None:
    """Undo skip-window and open-window. The calendar counts again."""
    from headway.flows.show.decisions import unskip
    from headway.flows.windows.admission import open_pipeline

    print_line(unskip(open_pipeline(_request(pipeline, workspace)), _now(), why=why))


@app.command("open-window")
def open_window(pipeline: Pipeline, why: Why, until: Until, workspace: WorkspaceUri = "") -> None:
    """Open a window from now until a moment; on record."""
    from headway.flows.show.decisions import open_until
    from headway.flows.windows.admission import open_pipeline

    print_line(open_until(open_pipeline(_request(pipeline, workspace)), _now(), until=until, why=why))


def _request(pipeline: str, workspace: str) -> RetrainRequest:
    return RetrainRequest(pipeline=pipeline, workspace=workspace or default_workspace())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
