"""What a project does with Headway from Python: retrain, and ask registered models."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.request import RetrainRequest
from headway.flows.console.command_signals import signals_as_before
from headway.flows.console.environment import default_workspace, prepare
from headway.flows.console.output import only_shown, print_to_terminal

if TYPE_CHECKING:
    from headway.flows.report.summary import RetrainSummary
    from headway.tasks.serving.prediction import TableModel, TextModel


def retrain(
    pipeline: str | os.PathLike[str],
    workspace: str | os.PathLike[str] = "",
    *,
    promote: bool = True,
    register: bool = True,
    note: str = "",
    stop_at: datetime | None = None,
    stop_at_step: int | None = None,
    in_window: bool = False,
    wait_s: float | None = None,
) -> RetrainSummary:
    """Run every stage that is not found, and register what comes out, as `headway retrain` does.

    It has to be called in the main thread, where a signal can stop it. Events are shown in the terminal. Without a
    configured Prefect server it runs without Prefect, unless HEADWAY_PREFECT_RECORDS is 1.

    Args:
        pipeline: a pipeline file, or the name of one in the folder `deployments`.
        workspace: a folder or URI; empty: HEADWAY_WORKSPACE, or the folder `workspace` of the project.
        promote: whether the version may become champion.
        register: whether it may be registered.
        note: why; kept in the ledger.
        stop_at: when a checkpoint is kept and the run ends, with a time zone; the next retrain continues it.
        stop_at_step: likewise, a step.
        in_window: nothing runs outside the pipeline's windows.
        wait_s: how long to wait for a process that trains the same run.

    Raises:
        HeadwayError: one of its kinds says what failed, where, and what to do next.
    """
    started_unix_s = time.time()
    try:
        request = RetrainRequest(
            pipeline=os.fspath(pipeline),
            workspace=os.fspath(workspace) or default_workspace(),
            may_promote=promote,
            may_register=register,
            note=note,
            stop_at=stop_at,
            stop_at_step=stop_at_step,
            in_window=in_window,
            wait_s=wait_s,
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(
            f"{plain_message(wrong)}.", where=f"retrain({wrong['loc'][0]}=...)", advice="See `help(headway.retrain)`."
        ) from None
    prepare()
    with signals_as_before():
        return run_request(request, started_unix_s)


def run_request(request: RetrainRequest, started_unix_s: float, *, as_json: bool = False) -> RetrainSummary:
    """Check the request, run its flow here, and show what happens.

    Raises:
        HeadwayError: it cannot be, or it failed.
    """
    print_to_terminal(f"retrain {request.pipeline} in {request.workspace or default_workspace()}")
    from headway.flows.config.pipeline_file import using_pipeline_file

    with using_pipeline_file(request.pipeline):
        return _run(request, started_unix_s, as_json=as_json)


def _run(request: RetrainRequest, started_unix_s: float, *, as_json: bool) -> RetrainSummary:
    from headway.flows.config.preflight import check_request

    # A user's mistake should cost a moment, not the start of a server.
    check_request(request)
    from headway.flows.windows.admission import enter

    request = enter(request)  # no server either where windows are closed
    from headway.flows.console.prefect_settings import names_no_server
    from headway.flows.retrain import found_retrain, needs_prefect, retrain_here
    from headway.flows.run.command_view import watch_flows

    view = watch_flows(started_unix_s, as_json=as_json)
    # A server of our own costs ten CPU seconds with the engine, and only people who ask for it look at what it says.
    is_alone = names_no_server()
    made = found_retrain(request) if is_alone else None
    if made is None and is_alone and not needs_prefect(request):
        made = retrain_here(request)
    elif made is None and is_alone:
        print_to_terminal("starting Prefect, which takes some seconds")
    made = made or _run_flow(request)
    with only_shown("the summary"):
        view.summary(made)
    return made


def _run_flow(request: RetrainRequest) -> RetrainSummary:
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.report.summary import RetrainSummary
    from headway.flows.retrain_flow import retrain as retrain_flow
    from headway.tasks.core.stopped import raised_if_stopped

    with prefect_api():
        made = raised_if_stopped(retrain_flow(request))
        assert isinstance(made, RetrainSummary)  # the gate is not asked again
        return made


def load_table_model(model_uri: str | os.PathLike[str], workspace: str | os.PathLike[str] = "") -> TableModel:
    """A registered model of table rows, to be asked: `load_table_model("models:/churn@champion").predict(rows)`.

    Args:
        model_uri: `models:/NAME@champion`, `models:/NAME/VERSION`, or a folder that `headway export` wrote, for which
            no workspace is asked.
        workspace: a folder or URI; empty: HEADWAY_WORKSPACE, or the folder `workspace` of the project.

    Raises:
        ConfigError: no such model, or none of tables.
        EnvironmentProblem: there is no workspace, or it cannot be used.
        IntegrityError: something that it stands on is gone or altered.
    """
    prepare()
    from headway.tasks.serving.exported_model import is_exported
    from headway.tasks.serving.prediction import load_exported_table_model, load_table_model

    model_uri = os.fspath(model_uri)
    if is_exported(model_uri):
        return load_exported_table_model(Path(model_uri))
    return load_table_model(Workspace.existing(os.fspath(workspace) or default_workspace()), model_uri)


def load_text_model(model_uri: str, workspace: str | os.PathLike[str] = "") -> TextModel:
    """A registered language model, to be asked: `load_text_model("models:/stdlib-lm@champion").bits(text)`.

    Args: and what is raised: as `load_table_model`.
    """
    prepare()
    opened = Workspace.existing(os.fspath(workspace) or default_workspace())
    from headway.tasks.serving.prediction import load_text_model

    return load_text_model(opened, model_uri)
