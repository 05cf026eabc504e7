"""The command `headway ci`: what a pull request's checkout is held against before it is merged."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.leftovers import scratch_folder
from headway.flows.ci.results import Checklist, CiReport, CommandEnded
from headway.flows.console.environment import default_workspace
from headway.flows.console.options import AsJson, Pipeline
from headway.flows.console.output import print_json, print_lines

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def ci(
    pipeline: Pipeline,
    base: Annotated[
        str, typer.Option(metavar="REF", help="The git ref that the change is to be merged into, such as origin/main.")
    ] = "",
    workspace: Annotated[
        str,
        typer.Option("--workspace", "-w", help="Where --full and --trials run, and the champion is; no smoke run."),
    ] = "",
    smoke: Annotated[bool, typer.Option(help="Retrain a few steps on a part of the data, and verify?")] = True,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also the whole run, evaluated as for a promotion; nothing is registered."),
    ] = False,
    register: Annotated[
        bool, typer.Option("--register", help="With --full: register its model, as challenger and never champion.")
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            metavar="SEEDS", min=0, max=10, help="Also train the base's settings and the change's with so many seeds."
        ),
    ] = 0,
    summary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Markdown; also added to $GITHUB_STEP_SUMMARY if that is set."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="JUnit XML, a case for each check.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a pull request. Contract against its base, configuration, recipe, encoder, mesh, and a smoke retrain.

    A breaking change of the contract needs a new major version. The exit code is that of the first check that failed.
    """
    # A check that was asked for and cannot be made would pass a change unseen.
    if trials and not base:
        raise typer.BadParameter("settings are compared with those of a base: give --base REF.", param_hint="--trials")
    if register and not full:
        raise typer.BadParameter("it goes with --full, whose model it registers.", param_hint="--register")
    from headway.flows.ci.checks import Checks, CiRequest
    from headway.flows.ci.pages import Progress, print_result, print_verdict

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # what one signal began, no second one cuts short
        raise CommandEnded(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)
    message: TextIO = sys.stderr if as_json else sys.stdout
    request = CiRequest(
        pipeline=pipeline, base=base, workspace=workspace, smoke=smoke, full=full, register=register, trials=trials
    )
    checklist, ended = Checklist(lambda result: print_result(result, message)), 0
    checks = Checks(request, workspace or default_workspace(), Progress(message))
    try:
        with scratch_folder("headway-ci-") as scratch:
            checks.make(checklist, scratch)
    except CommandEnded as signalled:
        ended = signalled.exit_code
        checklist.skip_rest("interrupted")
    report = CiReport(pipeline=pipeline, base=base, base_commit=checks.base_commit, results=checklist.results)
    problems = list(_write(report, summary, junit))
    if as_json:
        document = {**report.model_dump(mode="json"), "verdict": report.verdict, "exit_code": ended or report.exit_code}
        print_json(document)
    print_verdict(report, message, interrupted=bool(ended))
    for problem in problems:
        print_lines(f"headway: {problem}", sys.stderr)
    sys.exit(ended or report.exit_code or (EnvironmentProblem.exit_code if problems else 0))


def _write(report: CiReport, summary: Path | None, junit_file: Path | None) -> Iterator[str]:
    """Write the report where it was asked for; says what could not be written."""
    from headway.flows.ci.pages import junit_page, markdown

    page = markdown(report)
    step_summary = os.environ.get(STEP_SUMMARY)
    wanted = [
        *([(summary, "w", page)] if summary is not None else []),
        *([(Path(step_summary), "a", page)] if step_summary else []),
        *([(junit_file, "w", junit_page(report))] if junit_file is not None else []),
    ]
    for path, mode, text in wanted:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode, encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError as error:
            yield f"{path}: the report cannot be written ({error.strerror})."
