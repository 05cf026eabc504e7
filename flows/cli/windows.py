"""The commands about windows: see the calendar, skip, unskip, open."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from headway.flows.config.request import RetrainRequest
from headway.flows.console.options import AsJson, Pipeline, Why, WorkspaceUri
from headway.flows.console.output import emit, print_line

if TYPE_CHECKING:
    from headway.flows.windows.admission import Pipeline as OpenedPipeline

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
    from headway.flows.windows.moments import length

    far = length(ahead, "--next")
    calendar = make_calendar(_opened(pipeline, workspace), _now(), far)
    emit(calendar, print_calendar, as_json=as_json)


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

    print_line(
        skip(
            _opened(pipeline, workspace),
            _now(),
            until=until,
            skip_next=skip_next,
            why=why,
        )
    )


@app.command("unskip-window")
def unskip_window(pipeline: Pipeline, why: Why, workspace: WorkspaceUri = "") -> None:
    """Undo skip-window and open-window. The calendar counts again."""
    from headway.flows.show.decisions import unskip

    print_line(unskip(_opened(pipeline, workspace), _now(), why=why))


@app.command("open-window")
def open_window(pipeline: Pipeline, why: Why, until: Until, workspace: WorkspaceUri = "") -> None:
    """Open a window from now until a moment; on record."""
    from headway.flows.show.decisions import open_until

    print_line(open_until(_opened(pipeline, workspace), _now(), until=until, why=why))


def _opened(pipeline: str, workspace: str) -> OpenedPipeline:
    from headway.flows.windows.admission import open_pipeline

    return open_pipeline(RetrainRequest(pipeline=pipeline, workspace=workspace))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
