"""What there is to see: runs and champions, what was said, what starts a retrain, shards, traces, both UIs.

Heavy imports happen inside the commands that need them.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.flows.console.options import AsJson, Model, Pipeline, Run, RunOrNewest, WorkspaceUri
from headway.flows.console.output import emit, only_shown, print_json, print_lines, write_whole

if TYPE_CHECKING:
    from pydantic import BaseModel

    from headway.flows.config.profiles import PricesSpec
    from headway.flows.report.written_report import WrittenReport


PUSH_WITHIN_S = 30.0
"""For a person, who waits; a flow run does not."""
PricesOf = Annotated[
    str, typer.Option(help="Profile of deployments/profiles.yaml whose `prices` hold; no costs without.")
]
ReportFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="An .html page, or .md. Markdown is printed if left out.")
]


def status(
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
    live: Annotated[bool, typer.Option("--watch", help="Stay, and show it anew every two seconds.")] = False,
) -> None:
    """Show runs, champions, and how retrains ended. Also what waits, and the command that continues it."""
    from headway.flows.show.status import print_status, read_status, watch

    if live:
        if as_json:
            raise typer.BadParameter("--watch is for people: leave out --json.")
        watch(workspace)
    emit(read_status(workspace), print_status, as_json=as_json)


def cost(
    workspace: WorkspaceUri = "",
    by: Annotated[
        Literal["pipeline", "run", "month", "state", "cause"], typer.Option(help="What a line is of.")
    ] = "pipeline",
    profile: Annotated[
        str, typer.Option(help="Profile of deployments/profiles.yaml whose `prices` hold; device-hours alone without.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="LENGTH", help="Flow runs that began within this, such as 30d; all without.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Add up what flow runs cost. Also what of it was productive, and what failures wasted.

    Devices are paid for while they are held: neither between windows nor in a queue.
    """
    import time

    from headway.flows.console.environment import project_folder
    from headway.flows.console.stop_options import duration
    from headway.flows.show.cost import print_cost, read_cost

    since_unix_s = time.time() - duration(since, "--since").total_seconds() if since else 0.0
    emit(read_cost(workspace, by, project_folder(), profile, since_unix_s), print_cost, as_json=as_json)


def board(
    workspace: WorkspaceUri = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the page goes; one that is there is replaced. headway-board.html if left out."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Serve it instead, such as at 127.0.0.1:8765.")] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What --listen asks for; a password of this user's own if left out."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3660, help="How far back it looks.")] = 90,
    profile: PricesOf = "",
) -> None:
    """Write or serve one page about a workspace. Trends, failures, time and cost, curves of the newest runs.

    It is a file that needs nothing else, made of accounts, refs and live runs alone. --listen serves it until Ctrl-C,
    made anew for whoever looks, and every five seconds at most. It asks for the user `headway` and a password, and says
    where that lies.
    """
    from headway.flows.show.board import read_board
    from headway.flows.show.board_page import render_html

    if listen and out is not None:
        raise typer.BadParameter("--listen and --out are two ways; choose one.")
    if password_file is not None and not listen:
        raise typer.BadParameter("it goes with --listen.", param_hint="--password-file")
    if listen:
        from headway.flows.monitoring.board_server import serve_board

        serve_board(workspace, days, _prices(profile), listen, password_file)
        return
    out = out or Path("headway-board.html")
    write_whole(out, render_html(read_board(workspace, days, _prices(profile))).encode())
    print_lines(f"{out.resolve()}")


def report(
    period: Annotated[Literal["week", "month", "quarter"], typer.Argument(help="What it is about.")],
    workspace: WorkspaceUri = "",
    of: Annotated[
        str, typer.Option(metavar="DATE", help="A day of it, such as 2026-11-26; the last that is over if left out.")
    ] = "",
    out: ReportFile = None,
    profile: PricesOf = "",
    as_json: AsJson = False,
) -> None:
    """Report on a week, month or quarter. What failed, what it cost, who is champion, and what to decide.

    Each figure stands beside that of the period before.
    """
    from headway.flows.periods.page import written
    from headway.flows.periods.reading import day, read_period

    _require_page(out)
    prices = _prices(profile)
    found = read_period(workspace, period, prices, day(of) if of else None)
    _write_report(written(found, has_prices=bool(prices.device_hour_usd)), found, out, as_json=as_json)


def postmortem(
    run: RunOrNewest = "",
    workspace: WorkspaceUri = "",
    out: ReportFile = None,
    profile: PricesOf = "",
    as_json: AsJson = False,
) -> None:
    """Draft a postmortem of a run. What happened, what went by itself, what it cost, and what nobody knows yet."""
    from headway.flows.show.postmortem import read_postmortem, written

    _require_page(out)
    found = read_postmortem(workspace, run, _prices(profile))
    _write_report(written(found), found, out, as_json=as_json)


def _prices(profile: str) -> PricesSpec:
    from headway.flows.config.profiles import PricesSpec, load_profile
    from headway.flows.console.environment import project_folder

    return load_profile(project_folder(), profile)[1].prices if profile else PricesSpec()


def _write_report(text: WrittenReport, found: BaseModel, out: Path | None, *, as_json: bool) -> None:
    from headway.flows.report.written_report import to_html, to_markdown

    if out is not None:
        write_whole(out, (to_html(text) if out.suffix == ".html" else to_markdown(text)).encode())
    if as_json:
        print_json(found)
    else:
        print_lines(to_markdown(text) if out is None else f"{out.resolve()}")


def _require_page(out: Path | None) -> None:
    if out is not None and out.suffix not in (".html", ".md"):
        raise typer.BadParameter("a name that ends in .html or .md.", param_hint="--out")


def metrics(
    workspace: WorkspaceUri = "",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve them for Prometheus, such as at 127.0.0.1:9464.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them once, for node_exporter's textfile collector.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What --listen asks for; a password of this user's own if left out."),
    ] = None,
    pushes: Annotated[
        bool, typer.Option("--push", help="Put what is over to the Pushgateway that HEADWAY_PUSHGATEWAY names.")
    ] = False,
    profile: PricesOf = "",
) -> None:
    """Export metrics for Prometheus. Print them once, write them to a file, push them, or serve them until Ctrl-C.

    --listen asks for the user `headway` and a password, and says where that lies. Exit code 8: the address, the file or
    the gateway cannot be had.
    """
    from prometheus_client.exposition import generate_latest

    from headway.data_contracts.store.publication import Workspace
    from headway.flows.config.cost_bound import known_prices
    from headway.flows.config.profiles import load_profile
    from headway.flows.console.environment import project_folder
    from headway.flows.monitoring.exporter import serve_metrics, write_textfile
    from headway.flows.monitoring.last_word import push
    from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics

    if bool(listen) + (out is not None) + pushes > 1:
        raise typer.BadParameter("--listen, --out and --push are ways of their own; choose one.")
    # Without a profile as flow runs push them; otherwise a counter of costs would come and go.
    usual = known_prices(project_folder()) if pushes and not profile else None
    prices = load_profile(project_folder(), profile)[1].prices if profile else usual
    place = Workspace(workspace)  # a service may be there before the first retrain makes one
    found = WorkspaceMetrics(place, prices)
    if listen:
        if place.is_empty():
            print_lines(f"{place.uri} holds no workspace yet; its metrics begin with the first retrain")
        serve_metrics(found, place.uri, listen, password_file)
    elif out is not None:
        write_textfile(found, out)
    elif pushes:
        print_lines(f"pushed to {push(place, prices, PUSH_WITHIN_S)}")
    else:
        sys.stdout.write(generate_latest(found).decode())


def logs(
    run: RunOrNewest = "",
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


def goodput(
    run: RunOrNewest = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Show what a run's time was good for. Of all its attempts together, and what each recovery took."""
    from headway.flows.show.goodput import print_goodput, read_goodput

    emit(read_goodput(workspace, run), print_goodput, as_json=as_json)


def trace(
    run: RunOrNewest = "",
    workspace: WorkspaceUri = "",
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send it to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the traces of a run's flow runs. Stages, attempts, checkpoints and restores of each rank, registry calls.

    Sent once more it is the same trace. A flow run sends its own when it ends; one that was killed could not.
    """
    from headway.flows.show.trace import in_json, print_traces, read_traces, send_traces

    found = read_traces(workspace, run)
    if otlp:
        send_traces(found)
    if as_json:
        print_json(in_json(found))
    else:
        print_traces(found)


def history(model: Model, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """Show who became champion, when and why. Also who stayed challenger, waits, or was refused."""
    from headway.flows.show.champion_history import print_history, read_history

    found = read_history(workspace, model)
    emit(found, print_history, as_json=as_json)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="NAME/VERSION or NAME@ALIAS of a registered version.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another: its held-out rows are the ones.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Write a page there too; nothing is overwritten.")] = "",
    pipeline: Annotated[
        str, typer.Option(help="The pipeline whose source counts; by default the one that trained B.")
    ] = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Score two versions on the same rows. Difference, slices, and where they disagree."""
    from headway.flows.act.compare import compare_versions, print_compared

    made = compare_versions(workspace, first, second, pipeline=pipeline, out=out)
    with only_shown("the result"):
        emit(made, print_compared, as_json=as_json)


def triggers(pipeline: Pipeline, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """Show each trigger's figure beside its limit. Events are asked of PREFECT_API_URL.

    It looks at the data as a retrain would, which finds what this made; it asks for nothing.
    """
    from headway.flows.triggers.report import print_report, report

    found = report(pipeline, workspace)
    emit(found, print_report, as_json=as_json)


def shards(pipeline: Pipeline, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """Show the newest shards of a pipeline. Groups, splits, rows and bytes are those of its manifest."""
    from headway.flows.show.shards import print_shards, read_shards

    found = read_shards(pipeline, workspace)
    emit(found, print_shards, as_json=as_json)


def profile(
    run: Run,
    workspace: WorkspaceUri = "",
    steps: Annotated[int, typer.Option(min=1, help="How many steps to trace.")] = 3,
) -> None:
    """Record Chrome traces of a run's next steps. It says where they will lie."""
    from headway.flows.show.status import request_profile

    print_lines(request_profile(workspace, run, steps))


def ui(
    workspace: WorkspaceUri = "",
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect UI.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow UI.")] = 5000,
) -> None:
    """Start the Prefect and MLflow UIs on loopback. Ctrl-C ends them. It says how to log in.

    Should one of the two end, it says how, and the other goes on; the exit code is 8 then.
    """
    from headway.flows.prefect_api.serve import serve

    serve(workspace, prefect_port, mlflow_port)
