"""The command `headway`, put together: commands in their panels, and every error as one message with its exit code."""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import io
import logging
import os
import select
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import typer.core
import typer.exceptions
import typer.main
import typer.models

from headway.data_contracts.store import object_store
from headway.data_contracts.store.errors import (
    EXIT_DEFECT,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    ConfigError,
    EnvironmentProblem,
    HeadwayError,
)
from headway.data_contracts.store.full_disk import ADVICE, is_out_of_space
from headway.data_contracts.store.places import as_unusable
from headway.data_contracts.store.published_files import opened
from headway.data_contracts.types.report_text import count
from headway.flows.cli.alerts import app as alerts_app
from headway.flows.cli.ci import ci
from headway.flows.cli.contract import app as contract_app
from headway.flows.cli.decide import hold, promote, refuse, release, retire, rollback
from headway.flows.cli.drill import drill
from headway.flows.cli.look import (
    board,
    compare,
    cost,
    goodput,
    history,
    logs,
    metrics,
    postmortem,
    profile,
    report,
    shards,
    status,
    trace,
    triggers,
    ui,
)
from headway.flows.cli.prepare import doctor, explain, init_project, plan, schema
from headway.flows.cli.prove import reproduce, scrub, verify
from headway.flows.cli.rehearse import rehearse
from headway.flows.cli.retrain import resume, retrain, stop
from headway.flows.cli.set_up import clean, deploy
from headway.flows.cli.trials import trials
from headway.flows.cli.tune import tune
from headway.flows.cli.use import export, predict
from headway.flows.cli.windows import app as windows_app
from headway.flows.console.command_signals import HungUp, Terminated
from headway.flows.console.environment import prepare
from headway.flows.console.output import print_line, print_lines
from headway.flows.console.wait_option import WaitCommand
from headway.flows.show.installed_files import check_files
from headway.training.launch.base.failure import cause_of

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

EXIT_CODES = """\
Exit codes: 0 done · 2 configuration · 3 data · 4 contract · 5 integrity · 6 training · 7 refused by its policy ·
8 environment · 9 registry, or another was first to move the champion · 10 trained again, other bits ·
70 a defect of Headway · 75 stopped on request, the same command continues · 77 windows closed, or a person holds the
pipeline: nothing was done · 79 it has cost what it may · 129 terminal closed · 130 Ctrl-C · 143 SIGTERM
"""
PANELS = {
    "Prepare": ("init", "contract", "schema", "explain", "doctor", "plan", "rehearse", "tune"),
    "Retrain": ("retrain", "trials", "stop", "resume"),
    "Look": (
        *("status", "logs", "goodput", "trace", "cost", "board", "report", "postmortem", "metrics", "alerts"),
        "history",
        *("compare", "windows", "triggers", "shards", "profile", "ui"),
    ),
    "Decide": (
        *("promote", "refuse", "rollback", "retire", "hold", "release"),
        *("skip-window", "unskip-window", "open-window"),
    ),
    "Use": ("predict", "export"),
    "Prove": ("verify", "scrub", "reproduce", "drill"),
    "Set up": ("deploy", "ci", "clean"),
}
"""Every command, in the order in which one comes to need them."""


class PanelGroup(typer.core.TyperGroup):
    """Lists commands by `PANELS`. Typer's own panels are drawn by Rich, whose import would slow the help down."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        column = max(map(len, self.commands))
        for panel, names in PANELS.items():
            helps = {name: self.commands[name].get_short_help_str(formatter.width - column - 6) for name in names}
            with formatter.section(panel):
                formatter.write_dl([(f"{name:<{column}}", message) for name, message in helps.items()])


app = typer.Typer(
    cls=PanelGroup,
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(contract_app, name="contract")
app.add_typer(alerts_app, name="alerts")
app.add_typer(windows_app)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        print_line(f"headway {version('headway')}")
        raise typer.Exit


@app.callback()
def headway(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Retrain models from raw files to a registered version that can be proved."""


app.command(name="init")(init_project)
app.command(cls=WaitCommand)(retrain)
app.command(cls=WaitCommand)(resume)
app.command(cls=WaitCommand)(trials)
COMMANDS = (
    *(schema, explain, doctor, plan, rehearse, tune, stop),
    *(status, logs, goodput, trace, cost, board, report, postmortem, metrics, history, compare),
    *(triggers, shards, profile, ui),
    *(promote, refuse, rollback, retire, hold, release),
    *(predict, export, verify, scrub, reproduce, drill, deploy, ci, clean),
)
for command in COMMANDS:
    app.command()(command)


@functools.cache
def command_line(name: str) -> Command:
    """All commands, or the named one alone: to read the options of all fifty takes a tenth of a second.

    Args:
        name: the first argument, whatever it is.
    """
    named = [each for each in app.registered_commands if _name(each) == name]
    if not named:  # a group of commands, an option, a mistake that is answered with the names there are
        return typer.main.get_command(app)
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = named, []
    return typer.main.get_command(alone)


def _name(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None, "every command is a function"
    return command.name or typer.main.get_command_name(command.callback.__name__)


class Warnings(logging.Handler):
    """A line each on stderr, as everything else that the command says there."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):  # whoever warns goes on, whether it can be shown or not
            over_the_step = "\r\x1b[K" if sys.stderr.isatty() else ""
            sys.stderr.write(over_the_step)
            print_line(f"headway: {' '.join(record.getMessage().split())}", sys.stderr)


def log_warnings() -> None:
    """Show what this code warns of, such as a store that is tried again: of all other logs Prefect shows none here."""
    for package in ("headway.data_contracts", "headway.tasks", "headway.flows.tracing"):
        logging.getLogger(package).handlers = [Warnings(logging.WARNING)]


def run() -> int:
    """Run the command line; every error becomes one message and its exit code."""
    prepare()
    log_warnings()
    object_store.answers.person_waits = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character is no reason to fail
    try:
        _require_text(sys.argv[1:])
        # Typer keeps Ctrl-C to itself and returns its exit code.
        if command_line("".join(sys.argv[1:2]))(standalone_mode=False) == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
    except HeadwayError as error:
        print_lines(f"headway: {error}", sys.stderr)
        return error.exit_code
    except typer.Exit as error:
        return int(error.exit_code)
    except typer.Abort:
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print_line(
            "headway: interrupted; finished stages and checkpoints are kept, the same command continues.",
            sys.stderr,
        )
        return EXIT_INTERRUPTED
    except SystemExit as error:
        if isinstance(broken := error.__context__, BrokenPipeError):
            # Typer ends with 1, which is no exit code of ours, and without a word whichever pipe it was.
            return EnvironmentProblem.exit_code if _has_lost_its_reader() else _unexpected(broken)
        return error.code if isinstance(error.code, int) else EXIT_DEFECT
    except BaseException as error:
        return _unexpected(error)
    return 0


def _require_text(arguments: list[str]) -> None:
    """What people say is kept in documents and in MLflow, which take UTF-8: told before anything is done.

    Raises:
        ConfigError: an argument is none.
    """
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            advice = "Is the terminal's character set another, or the file's name an old one?"
            raise ConfigError("not UTF-8.", where=f"argument {number}, {argument}", advice=advice) from error


def _has_lost_its_reader() -> bool:
    """Whether nobody reads stdout or stderr any more, as of `headway logs | head`: there is nobody to be told."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _as_asked(error: OSError) -> HeadwayError | None:
    """What to say of an error that comes of how the command was called, at any of a hundred places."""
    if error.errno == errno.ENAMETOOLONG:
        # No name that Headway makes is so long.
        name = os.fsdecode(error.filename or "")
        return ConfigError("the name is too long for a file.", where=f"{name[:60]}..., {count(len(name), 'character')}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return EnvironmentProblem(
            f"no more files can be opened ({error.strerror}).", advice="Raise the limit, such as by `ulimit -n 4096`."
        )
    if error.errno == errno.EFBIG:
        return EnvironmentProblem(
            f"a file would be larger than this process may write ({error.strerror}).",
            where=os.fsdecode(error.filename or ""),
            advice="Raise the limit, such as by `ulimit -f unlimited`, or write where files may be larger.",
        )
    if error.errno == errno.ENOENT and not _is_somewhere():
        return EnvironmentProblem("the current folder was removed.", advice="Change to another, and run again.")
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, ImportError):
        return "failed to map segment" in str(error)  # the linker's words where a library finds no address space
    is_systems = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_systems or type(error).__name__ == "OutOfMemoryException" or cause_of(error) == "oom"


def _is_somewhere() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _unexpected(error: BaseException) -> int:
    if isinstance(error, typer.exceptions.TyperException):
        shown = io.StringIO()
        error.show(shown)  # type: ignore[attr-defined]
        print_lines(shown.getvalue().rstrip(), sys.stderr)
        return ConfigError.exit_code
    # By its name: to import Prefect for the class would take seconds at the end of every command.
    if isinstance(error, Terminated) or type(error).__name__ == "TerminationSignal":
        print_line(
            "headway: terminated; finished stages and checkpoints are kept, the same command continues.",
            sys.stderr,
        )
        return EXIT_TERMINATED
    if isinstance(error, HungUp):
        print_line(
            "headway: the terminal was closed; finished stages and checkpoints are kept, the same command continues.",
            sys.stderr,
        )
        return EXIT_HUNG_UP
    if (problem := as_unusable(error, opened)) is not None:
        print_lines(f"headway: {problem}", sys.stderr)
        return problem.exit_code
    if is_out_of_space(error):
        what = f"no space left for its output or for what it writes ({error})."
        print_lines(f"headway: {EnvironmentProblem(what, advice=ADVICE)}", sys.stderr)
        return EnvironmentProblem.exit_code
    if isinstance(error, OSError) and (answer := _as_asked(error)) is not None:
        print_lines(f"headway: {answer}", sys.stderr)
        return answer.exit_code
    if _is_out_of_memory(error):
        what = f"this process may have no more memory ({str(error) or type(error).__name__})."
        advice = "Raise its limit, such as by `ulimit -v unlimited`, end other programs, or take a larger machine."
        print_lines(f"headway: {EnvironmentProblem(what, advice=advice)}", sys.stderr)
        return EnvironmentProblem.exit_code
    if isinstance(error, ImportError | SyntaxError):
        try:
            # A module that cannot be imported mostly means a damaged installation, and that has a remedy.
            check_files()
        except EnvironmentProblem as damage:
            print_lines(f"headway: {damage}", sys.stderr)
            return damage.exit_code
    try:
        # In a file: on the terminal a traceback would hide the sentence that says what to do.
        descriptor, name = tempfile.mkstemp(prefix="headway-defect-", suffix=".txt")
        with os.fdopen(descriptor, "w") as file:
            traceback.print_exception(error, file=file)
        where = f"in {name}"
    except OSError:
        traceback.print_exception(error)
        where = "above"
    print_line(
        f"headway: a defect of Headway's own ({type(error).__name__}: {error}). The traceback is {where}; "
        "please report it.",
        sys.stderr,
    )
    return EXIT_DEFECT
