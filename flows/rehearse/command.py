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
from flows.request import RetrainRequest


def rehearse(
    pipeline: Pipeline,
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", help="Whose storage it is rehearsed on; nothing in it is touched.")
    ] = "",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Training steps; half of them before a restore.")] = 6,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what was made below the workspace's rehearsals/.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage for real on a part of the data, through the pipeline's launcher and at full size, and say what
    the real run would take and what would fail. Registry, refs, windows, holds and champion are not touched.

    The exit code is the one that `retrain` would end with.
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
        print(f"headway: ended; what was rehearsed {'is kept' if keep else 'is removed'}.", file=sys.stderr)
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
            print(report.model_dump_json())
        else:
            print_report(report)

    with prefect_api(of_its_own=True):
        Rehearsal(request, steps=steps, keep=keep, hear=hear).run(tell)
