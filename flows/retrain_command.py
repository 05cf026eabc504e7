"""`headway retrain` and `headway resume`. Heavy imports happen when the request is known to be good."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.environment import default_workspace
from flows.options import AsJson, Pipeline, Promote, Register, StopAfter, StopAt, StopAtStep, WorkspaceUri
from flows.output import only_shown
from flows.request import RetrainRequest
from flows.stop_options import duration, stop_fields
from flows.wait_option import Wait
from flows.windows.command import InWindow
from training.process_ends import started_unix_s


def retrain(
    pipeline: Pipeline,
    workspace: WorkspaceUri = "",
    promote: Promote = True,
    register: Register = True,
    note: Annotated[str, typer.Option(help="Why; kept in the ledger.")] = "",
    stop_at: StopAt = "",
    stop_after: StopAfter = "",
    stop_at_step: StopAtStep = None,
    in_window: InWindow = False,
    wait: Wait = "",
    as_json: AsJson = False,
) -> None:
    """Run every stage that is not found, and register what comes out; ended by a bound, it is continued by the next."""
    began_unix_s = started_unix_s()
    request = RetrainRequest(
        pipeline=pipeline,
        workspace=workspace or default_workspace(),
        may_promote=promote,
        may_register=register,
        note=note,
        in_window=in_window,
        stop_at_step=stop_at_step,
        wait_s=duration(wait, "--wait").total_seconds() if wait else None,
        **stop_fields(stop_at, stop_after, began_unix_s),
    )
    _run(request, began_unix_s, as_json=as_json)


def resume(
    run: Annotated[str, typer.Argument(help="An unfinished run's id, as `headway status` shows it, or its beginning.")],
    why: Annotated[str, typer.Option("--why", help="Why; kept in the ledger, with your name where it goes back.")] = "",
    from_step: Annotated[
        int | None,
        typer.Option("--from", metavar="STEP", min=0, help="Put the checkpoints past this step aside before; 0: all."),
    ] = None,
    pipeline: Annotated[str, typer.Option(help="Its pipeline's file, where that is not deployments/NAME.yaml.")] = "",
    workspace: WorkspaceUri = "",
    promote: Promote = True,
    register: Register = True,
    stop_at: StopAt = "",
    stop_after: StopAfter = "",
    stop_at_step: StopAtStep = None,
    wait: Wait = "",
    as_json: AsJson = False,
) -> None:
    """Go on with a run on the code and data that it was begun with, and register what comes out."""
    began_unix_s = started_unix_s()
    from data_contracts.errors import ConfigError
    from data_contracts.publication import Workspace
    from tasks.resumed_run import named_run

    if from_step is not None and not why.strip():
        raise ConfigError("going back needs its reason.", where="--why", advice="Whoever is on call will read it.")
    uri = workspace or default_workspace()
    link, begun = named_run(Workspace.existing(uri), run)
    request = RetrainRequest(
        pipeline=pipeline or _file_of(begun.pipeline, link.sha256[:16]),
        workspace=uri,
        may_promote=promote,
        may_register=register,
        note=why,
        run=link.sha256[:16],
        from_step=from_step,
        stop_at_step=stop_at_step,
        wait_s=duration(wait, "--wait").total_seconds() if wait else None,
        **stop_fields(stop_at, stop_after, began_unix_s),
    )
    _run(request, began_unix_s, as_json=as_json)


def _file_of(pipeline: str, run: str) -> str:
    """The name, where its file is found by it. Raises `ConfigError`, with the option that names the file, elsewhere."""
    from data_contracts.errors import ConfigError
    from flows.environment import project_folder
    from flows.pipeline_spec import find_pipeline_file

    try:
        find_pipeline_file(pipeline, project_folder())
    except ConfigError as error:
        raise ConfigError(
            f"run {run} is {pipeline}'s, of which there is no file here.",
            where=error.where,
            advice="Name its pipeline's file with `--pipeline FILE`, or resume it from the folder it was begun in.",
        ) from error
    return pipeline


def _run(request: RetrainRequest, began_unix_s: float, *, as_json: bool) -> None:
    from flows.preflight import check_request

    # A user's mistake should cost a moment, not the start of a server.
    check_request(request)
    from flows.windows.admission import enter

    request = enter(request)  # no server either where windows are closed
    from flows.retrain import retrain as retrain_flow
    from flows.summary import RetrainSummary
    from flows.watched_flow import watched_flow
    from tasks.stopped import raised_if_stopped

    with watched_flow(began_unix_s, as_json=as_json) as view:
        made = raised_if_stopped(retrain_flow(request))
        assert isinstance(made, RetrainSummary)  # the gate is not asked again
        with only_shown("the summary"):
            view.summary(made)
