"""The command `headway rehearse`. Heavy imports happen inside it."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from headway.data_contracts.store.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from headway.flows.config.request import RetrainRequest
from headway.flows.console.command_signals import install_signal_handlers, terminate
from headway.flows.console.environment import default_workspace
from headway.flows.console.options import AsJson, Pipeline
from headway.flows.console.output import emit, print_line


def rehearse(
    pipeline: Pipeline,
    workspace: Annotated[
        str,
        typer.Option("--workspace", "-w", help="Where the real run would keep its data; nothing in it is touched."),
    ] = "",
    steps: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Training steps: half of them, a checkpoint, and the rest from there; 1 has none."
        ),
    ] = 6,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep what was made, in rehearsals/ of the workspace; else it is removed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage on a part of the data.

    It uses the pipeline's own model, batch, launcher and ranks, and says what the real run would take and what would
    fail. Registry, refs, windows, holds and champion are not touched.

    It neither waits for devices that pipelines compete for, nor holds any. The exit code is the one that `retrain`
    would end with; 8 where space would not suffice, or the registry does not answer.
    """
    request = RetrainRequest(pipeline=pipeline, workspace=workspace or default_workspace())
    from headway.flows.rehearse.place import leaving_no_empty_folder

    try:
        with leaving_no_empty_folder(request.workspace):
            _rehearse(request, steps=steps, keep=keep, as_json=as_json)
    except BaseException as end:
        if isinstance(end, Exception):
            raise
        # Of a retrain it would be said that the same command continues it.
        print_line(f"headway: ended; what was rehearsed {'is kept' if keep else 'is removed'}.", sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(end, KeyboardInterrupt) else EXIT_TERMINATED)


def _rehearse(request: RetrainRequest, *, steps: int, keep: bool, as_json: bool) -> None:
    from headway.flows.config.preflight import check_request

    check_request(request)  # a user's mistake should cost a moment, not the start of a server
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.rehearse.rehearsing import RehearsalRunner
    from headway.flows.rehearse.report import RehearsalReport, print_report
    from headway.flows.report.terminal import Terminal
    from headway.training.observe.ledger import Event

    install_signal_handlers()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)  # a job must not go on in a workspace that goes
    view = Terminal(sys.stderr if as_json else sys.stdout)

    def on_event(event: Event) -> None:
        if event["event"] != "flow.card":  # its commands name what goes
            view(event)

    def on_report(report: RehearsalReport) -> None:
        emit(report, print_report, as_json=as_json)

    with prefect_api(is_ephemeral=True):
        RehearsalRunner(request, steps=steps, keep=keep, on_event=on_event).run(on_report)
