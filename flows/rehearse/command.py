"""The command `headway rehearse`. Heavy imports happen inside it."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from data_contracts.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from flows.command_signals import hear_of_the_end, terminate
from flows.environment import default_workspace
from flows.options import AsJson, Pipeline
from flows.output import print_json, print_line
from flows.request import RetrainRequest


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
    """Run every stage for real on a part of the data, with the pipeline's own model, batch, launcher and ranks, and say
    what the real run would take and what would fail. Registry, refs, windows, holds and champion are not touched.

    It neither waits for devices that pipelines compete for, nor holds any. The exit code is the one that `retrain`
    would end with; 8 where space would not suffice, or the registry does not answer.
    """
    request = RetrainRequest(pipeline=pipeline, workspace=workspace or default_workspace())
    from flows.rehearse.place import leaving_no_empty_folder

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
    from flows.preflight import check_request

    check_request(request)  # a user's mistake should cost a moment, not the start of a server
    from flows.own_server import prefect_api
    from flows.rehearse.rehearsing import Rehearsal
    from flows.rehearse.report import Report, print_report
    from flows.terminal import Terminal
    from training.ledger import Event

    hear_of_the_end()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)  # a job must not go on in a workspace that goes
    view = Terminal(sys.stderr if as_json else sys.stdout)

    def hear(event: Event) -> None:
        if event["event"] != "flow.card":  # its commands name what goes
            view(event)

    def tell(report: Report) -> None:
        if as_json:
            print_json(report)
        else:
            print_report(report)

    with prefect_api(of_its_own=True):
        Rehearsal(request, steps=steps, keep=keep, hear=hear).run(tell)
