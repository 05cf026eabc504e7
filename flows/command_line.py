"""The command `headway`. Heavy imports happen inside the commands that need them.

Exit codes: 0 done · 2 configuration · 3 data · 4 contract · 5 integrity · 6 training · 7 refused by its policy ·
8 environment · 9 registry, or another was first to move the champion · 10 trained again, other bits ·
70 a defect of Headway · 75 stopped on request, the same command continues · 77 windows closed, or a person holds the
pipeline: nothing was done ·
129 terminal closed · 130 Ctrl-C · 143 SIGTERM
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer
import typer.exceptions

from data_contracts.errors import (
    EXIT_DEFECT,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    ConfigError,
    HeadwayError,
)
from flows.ci.command import ci
from flows.clean_command import clean
from flows.contract_command import app as contract_app
from flows.deploy.command import deploy
from flows.environment import default_workspace, prepare
from flows.promotion_command import history, promote, refuse, retire, rollback
from flows.request import RetrainRequest
from flows.run_command import hold, logs, profile, release, status, stop
from flows.stop_options import stop_time
from flows.triggers.command import triggers
from flows.windows.command import InWindow
from flows.windows.command import app as windows_app

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

app.add_typer(contract_app, name="contract")
app.add_typer(windows_app)

Pipeline = Annotated[str, typer.Argument(help="A pipeline file, or the name of one in deployments/.")]
WorkspaceUri = Annotated[str, typer.Option("--workspace", "-w", help="Where data, checkpoints and models are kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")]


@app.command()
def retrain(
    pipeline: Pipeline,
    workspace: WorkspaceUri = "",
    promote: Annotated[bool, typer.Option(help="May the new model become champion?")] = True,
    register: Annotated[bool, typer.Option(help="Register the model, and make it challenger?")] = True,
    note: Annotated[str, typer.Option(help="Why; kept in the ledger.")] = "",
    stop_at: Annotated[
        str, typer.Option(metavar="TIME", help="Keep a checkpoint by then and end, such as 2030-01-31T06:00+01:00.")
    ] = "",
    stop_after: Annotated[str, typer.Option(metavar="LENGTH", help="The same, from now: 90s, 30m, 1h30m.")] = "",
    stop_at_step: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Train to this step, keep a checkpoint and end.")
    ] = None,
    in_window: InWindow = False,
    as_json: AsJson = False,
) -> None:
    """Run every stage that is not found, and register what comes out; ended by a bound, it is continued by the next."""
    import psutil

    began_unix_s = psutil.Process().create_time()
    from flows.preflight import check_request

    stop = stop_time(stop_at, stop_after, began_unix_s)
    request = RetrainRequest(
        pipeline=pipeline,
        workspace=workspace or default_workspace(),
        may_promote=promote,
        may_register=register,
        note=note,
        stop_at_step=stop_at_step,
        **({} if stop is None else {"stop_at": stop.at, "stop_because": stop.because}),
        in_window=in_window,
    )
    # A user's mistake should cost a moment, not the start of a server.
    check_request(request)
    from flows.windows.admission import enter

    request = enter(request)  # no server either where windows are closed
    from flows.own_server import prefect_api
    from flows.retrain import retrain as retrain_flow
    from flows.session import command_began_unix_s, watchers
    from flows.summary import RetrainSummary
    from flows.terminal import JsonLines, Terminal

    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _hang_up)
    view = JsonLines() if as_json else Terminal()
    watchers.set((view,))
    command_began_unix_s.set(began_unix_s)
    with prefect_api():
        made = retrain_flow(request)
        assert isinstance(made, RetrainSummary)  # the gate is not asked again
        view.summary(made)


@app.command()
def plan(
    pipeline: Pipeline,
    workspace: WorkspaceUri = "",
    rehearse: Annotated[
        bool, typer.Option(help="Measure a few steps where no earlier run tells what they take?")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Say what a retrain would run, find, read and take, without spending it."""
    from flows.plan import make_plan, print_plan

    request = RetrainRequest(pipeline=pipeline, workspace=workspace or default_workspace())
    made = make_plan(request, may_rehearse=rehearse)
    if as_json:
        print(json.dumps(made.model_dump(mode="json")))
    else:
        print_plan(made)


@app.command()
def shards(pipeline: Pipeline, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """The newest shards of a pipeline: groups, splits, rows and bytes, as its manifest has them."""
    from flows.shards import print_shards, read_shards

    found = read_shards(pipeline, workspace or default_workspace())
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
    else:
        print_shards(found)


@app.command()
def verify(
    model_uri: Annotated[str, typer.Argument(help="models:/NAME@champion or models:/NAME/VERSION")],
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Re-hash everything a model version stands on, offline; name the first broken link."""
    from flows.verify import verify_model

    sys.exit(verify_model(model_uri, workspace or default_workspace(), as_json=as_json))


@app.command()
def reproduce(
    model_uri: Annotated[str, typer.Argument(help="models:/NAME@champion or models:/NAME/VERSION")],
    again: Annotated[bool, typer.Option("--again", help="From the first step, whatever an earlier one left.")] = False,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Train a registered version again, beside all that is kept, and compare. Exit code 10: other bits."""
    from flows.reproduce import reproduce_model

    signal.signal(signal.SIGTERM, _terminate)
    reproduce_model(model_uri, workspace or default_workspace(), again=again, as_json=as_json)


@app.command()
def export(
    model_uri: Annotated[str, typer.Argument(help="models:/NAME@champion or models:/NAME/VERSION")],
    out: Annotated[Path, typer.Option(help="A folder that is not there yet.")],
    workspace: WorkspaceUri = "",
) -> None:
    """Copy a registered model out, verified: weights and configuration, and its graph. Neither needs Headway."""
    from flows.export import export_model

    for path in export_model(model_uri, workspace or default_workspace(), out):
        print(path)


@app.command()
def ui(
    workspace: WorkspaceUri = "",
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect UI.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow UI.")] = 5000,
) -> None:
    """Start the Prefect server and the MLflow UI on loopback, until Ctrl-C."""
    from flows.serve import serve

    serve(workspace or default_workspace(), prefect_port, mlflow_port)


COMMANDS = (
    status,
    logs,
    stop,
    hold,
    release,
    profile,
    history,
    promote,
    refuse,
    rollback,
    retire,
    triggers,
    ci,
    deploy,
    clean,
)
for command in COMMANDS:
    app.command()(command)


class Terminated(BaseException):
    """SIGTERM came. Prefect's own handler passes the signal on to ours, whose default would end us without a word."""


class HungUp(BaseException):
    """SIGHUP came: the terminal was closed."""


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def _hang_up(_number: int, _frame: object) -> None:
    # Kernel and shell each send one; the second must not cut short what the first began.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _let_go_of_dead_streams()
    raise HungUp


def _let_go_of_dead_streams() -> None:
    """What is written for a terminal or a reader that is gone goes nowhere, instead of failing on its way."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def run() -> int:
    """Run the command line; every error becomes one message and its exit code."""
    prepare()
    try:
        # Typer keeps Ctrl-C to itself and returns its exit code.
        if app(standalone_mode=False) == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
    except HeadwayError as error:
        print(f"headway: {error}", file=sys.stderr)
        return error.exit_code
    except typer.Exit as error:
        return int(error.exit_code)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print(
            "headway: interrupted; finished stages and checkpoints are kept, the same command continues.",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_DEFECT
    except BaseException as error:
        return _unexpected(error)
    return 0


def _unexpected(error: BaseException) -> int:
    if isinstance(error, typer.exceptions.TyperException):
        error.show()  # type: ignore[attr-defined]
        return ConfigError.exit_code
    if isinstance(error, Terminated) or type(error).__name__ == "TerminationSignal":
        print(
            "headway: terminated; finished stages and checkpoints are kept, the same command continues.",
            file=sys.stderr,
        )
        return EXIT_TERMINATED
    if isinstance(error, HungUp):
        print(
            "headway: the terminal was closed; finished stages and checkpoints are kept, the same command continues.",
            file=sys.stderr,
        )
        return EXIT_HUNG_UP
    try:
        descriptor, name = tempfile.mkstemp(prefix="headway-defect-", suffix=".txt")
        with os.fdopen(descriptor, "w") as file:
            traceback.print_exception(error, file=file)
        where = f"in {name}"
    except OSError:
        traceback.print_exception(error)
        where = "above"
    print(
        f"headway: a defect of Headway's own ({type(error).__name__}: {error}). The traceback is {where}; "
        "please report it.",
        file=sys.stderr,
    )
    return EXIT_DEFECT
