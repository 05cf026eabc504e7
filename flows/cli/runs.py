"""Runs, on the command line: what goes on, what was said, what one is asked for, what starts it, whether any may begin.

Heavy imports happen inside.
"""

from __future__ import annotations

import resource
import sys
from typing import Annotated

import typer

from headway.flows.console.options import AsJson, Pipeline, Why, WorkspaceUri
from headway.flows.console.output import emit, print_line, print_lines

HeldPipeline = Annotated[str, typer.Argument(help="A pipeline file, or the name of one in deployments/.")]
Name = Annotated[str, typer.Option(help="Instead: the name in a file that is gone, or cannot be read any more.")]
Run = Annotated[
    str, typer.Argument(help="A run's id, as `headway status` shows it, or its beginning, or a flow run's.")
]


def status(
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
    as_metrics: Annotated[bool, typer.Option("--metrics", help="Prometheus's text format instead.")] = False,
) -> None:
    """Show runs, champions, and how retrains ended. Also what waits, and the command that continues it."""
    from headway.flows.show.status import print_status, read_status

    found = read_status(workspace)
    if as_metrics:
        from headway.flows.show.status_metrics import metrics

        sys.stdout.write(metrics(found))
    else:
        emit(found, print_status, as_json=as_json)


def stop(
    run: Run,
    workspace: WorkspaceUri = "",
    why: Annotated[str, typer.Option("--why", help="The reason; kept with the run.")] = "",
    reason: Annotated[str, typer.Option("--reason", hidden=True)] = "",
) -> None:
    """Ask a run to keep a checkpoint and end. The same `retrain` continues it."""
    from headway.flows.show.status import request_stop

    print_line(request_stop(workspace, run, why or reason))


def logs(
    run: Annotated[
        str,
        typer.Argument(
            help="A run's id or its beginning, or a flow run's; by default the running one, or else the newest."
        ),
    ] = "",
    workspace: WorkspaceUri = "",
    rank: Annotated[list[int] | None, typer.Option(help="Only this rank's; may be given several times.")] = None,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt at training.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="Only so many of the lines that are there.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what happened in a run. Also what ranks, agents and guards wrote, by time."""
    from headway.flows.show.logs import show_logs

    # All logs are open while they are merged by time: as many as attempts times ranks.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    show_logs(workspace, run, ranks=rank or (), attempt=attempt, tail=tail, follow=follow, as_json=as_json)


def profile(
    run: Run,
    workspace: WorkspaceUri = "",
    steps: Annotated[int, typer.Option(min=1, help="How many steps to trace.")] = 3,
) -> None:
    """Record Chrome traces of a run's next steps. It says where they will lie."""
    from headway.flows.show.status import request_profile

    print_lines(request_profile(workspace, run, steps))


def hold(why: Why, pipeline: HeldPipeline = "", name: Name = "", workspace: WorkspaceUri = "") -> None:
    """Hold a pipeline until `release`. No schedule, trigger, form or person retrains it; on record."""
    from headway.flows.windows import holds

    print_line(holds.hold(workspace, pipeline, name=name, why=why))


def release(why: Why, pipeline: HeldPipeline = "", name: Name = "", workspace: WorkspaceUri = "") -> None:
    """Release a pipeline that somebody holds; on record."""
    from headway.flows.windows import holds

    print_line(holds.release(workspace, pipeline, name=name, why=why))


def triggers(pipeline: Pipeline, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """Show each trigger's figure beside its limit. Events are asked of PREFECT_API_URL.

    It looks at the data as a retrain would, which finds what this made; it asks for nothing.
    """
    from headway.flows.triggers.report import print_report, report

    found = report(pipeline, workspace)
    emit(found, print_report, as_json=as_json)
