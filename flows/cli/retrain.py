"""`headway retrain`, `stop` and `resume`. Heavy imports happen when the request is known to be good."""

from __future__ import annotations

import contextlib
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from headway.flows.cli.windows import InWindow
from headway.flows.config.request import RetrainRequest
from headway.flows.console.options import (
    AsJson,
    Pipeline,
    Promote,
    Register,
    Run,
    StopAfter,
    StopAt,
    StopAtStep,
    WorkspaceUri,
)
from headway.flows.console.output import print_line
from headway.flows.console.stop_options import stop_fields
from headway.flows.console.wait_option import Wait, wait_s
from headway.flows.python_api import run_request
from headway.training.observe.process_ends import process_start_unix_s

if TYPE_CHECKING:
    from headway.data_contracts.store.publication import Workspace


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
    """Run every stage that has something new to do. What a bound ends is continued by the next retrain."""
    started_unix_s = process_start_unix_s()
    request = RetrainRequest(
        pipeline=pipeline,
        workspace=workspace,
        may_promote=promote,
        may_register=register,
        note=note,
        in_window=in_window,
        stop_at_step=stop_at_step,
        wait_s=wait_s(wait),
        **stop_fields(stop_at, stop_after, started_unix_s),
    )
    run_request(request, started_unix_s, as_json=as_json)


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
    """Continue a run on the code and data it started with. Its model is registered as in a retrain."""
    started_unix_s = process_start_unix_s()
    from headway.data_contracts.store.errors import ConfigError
    from headway.data_contracts.store.publication import Workspace
    from headway.tasks.stages.resumed_run import named_run

    if from_step is not None and not why.strip():
        raise ConfigError("going back needs its reason.", where="--why", advice="It is shown to who is on call.")
    there = Workspace.existing(workspace)
    link, started = named_run(there, run)
    request = RetrainRequest(
        pipeline=pipeline or _file_of(there, started.pipeline, link.sha256[:16]),
        workspace=workspace,
        may_promote=promote,
        may_register=register,
        note=why,
        run=link.sha256[:16],
        from_step=from_step,
        stop_at_step=stop_at_step,
        wait_s=wait_s(wait),
        **stop_fields(stop_at, stop_after, started_unix_s),
    )
    run_request(request, started_unix_s, as_json=as_json)


def stop(
    run: Run,
    workspace: WorkspaceUri = "",
    why: Annotated[str, typer.Option("--why", help="The reason; kept with the run.")] = "",
    reason: Annotated[str, typer.Option("--reason", hidden=True)] = "",
) -> None:
    """Ask a run to keep a checkpoint and end. The same `retrain` continues it."""
    from headway.flows.show.status import request_stop

    print_line(request_stop(workspace, run, why or reason))


def _file_of(workspace: Workspace, pipeline: str, run: str) -> str:
    """The name, where its file is found by it, or the file it was last trained from. Raises `ConfigError` elsewhere."""
    from headway.data_contracts.store.errors import ConfigError
    from headway.flows.config.pipeline_spec import find_pipeline_file
    from headway.flows.console.environment import project_folder
    from headway.flows.show.status import newest_attempt

    newest = newest_attempt(workspace.local_path(f"runs/{run}"))
    command = newest.continued_by if newest is not None else ""
    typed = shlex.split(command)
    # Of `headway retrain FILE`, `headway trials FILE` or `headway resume RUN --pipeline FILE`.
    places = [typed.index(word) + 1 for word in ("--pipeline", "retrain", "trials") if word in typed[:-1]]
    for name in (pipeline, *(typed[place] for place in places[:1])):
        with contextlib.suppress(ConfigError):
            find_pipeline_file(name, project_folder())
            return name
    raise ConfigError(
        f"run {run} is {pipeline}'s, of which no file is found from {project_folder()}.",
        where="--pipeline",
        advice="Name the file here, or resume the run from the folder it was started in"
        + (f", where `{command}` was given." if command else "."),
    )
