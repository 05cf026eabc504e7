"""The command `headway drill`. Heavy imports happen inside it."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.data_contracts.store.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from headway.flows.console.command_signals import install_signal_handlers, terminate
from headway.flows.console.environment import project_folder
from headway.flows.console.options import AsJson, WorkspaceUri
from headway.flows.console.output import print_json, print_line, print_lines, require_writable, write_whole

PAGE = ".html"
MAX_SEED = (1 << 63) - 1
Launcher = Literal["local", "ssh", "slurm", "kubernetes"]


def drill(
    modes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[F1..F10]...", help="Failure modes; all but F8 if left out."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=MAX_SEED, help="Of what happens to whom and when; drawn if left out."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A .json file for the report; its page lies beside it.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the sandbox there: a folder that is not there yet.")
    ] = None,
    launcher: Annotated[
        Launcher | None,
        typer.Option(help="Start ranks as the project's first pipeline does that takes it; local if left out."),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="As the game day of this profile of deployments/profiles.yaml does.")
    ] = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Plant failures in a sandbox and judge the recovery. Nothing that exists is touched.

    Each drill runs `headway retrain` on a small made-up pipeline, with two ranks. It measures whether the failure is
    seen, what it is called, how soon training goes on, and whether the weights are those of an undisturbed run.

    For a launcher other than local the sandbox lies in `drills/` of the workspace, which the ranks' machines have to
    see, and goes with the drill. Exit code 6: an objective was missed. 8: nothing could be drilled here.
    """
    if out is not None and out.suffix != ".json":
        raise typer.BadParameter("a name that ends in .json.", param_hint="--out")
    install_signal_handlers()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)  # nobody else looks after the sandbox
    try:
        seed = random.randrange(1 << 31) if seed is None else seed
        _drill(modes or [], seed, out, keep, launcher or "", profile, workspace, as_json=as_json)
    except BaseException as end:
        if isinstance(end, Exception):
            raise
        # Of a retrain it would be said that the same command continues it.
        print_line("headway: ended; nothing of the drill is left running.", sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(end, KeyboardInterrupt) else EXIT_TERMINATED)


def _drill(
    modes: list[str],
    seed: int,
    out: Path | None,
    keep: Path | None,
    launcher: str = "",
    profile: str = "",
    workspace: str = "",
    *,
    as_json: bool,
) -> None:
    from headway.data_contracts.store.digests import canonical_json
    from headway.data_contracts.store.publication import Workspace
    from headway.flows.config.launchers_in_use import launch_of_drills
    from headway.flows.config.profiles import load_profile
    from headway.flows.drill.report import DrillResult, document, print_report, to_html
    from headway.flows.drill.running import problem_of, run_drills

    def on_result(result: DrillResult) -> None:
        print_line(f"{result.mode:<4} {result.title:<24} {result.state:<8} {result.took_s:.1f} s", sys.stderr)

    if out is not None:
        # Before minutes are spent on what could not be kept.
        for file in (out, out.with_suffix(PAGE)):
            require_writable(file)
    folder = project_folder()
    found_profile = load_profile(folder, profile)[1] if profile else None
    report = run_drills(
        [mode.upper() for mode in modes],
        seed,
        launch=launch_of_drills(folder, found_profile, launcher),
        workspace=Workspace(workspace) if workspace else None,
        keep=keep,
        on_result=on_result,
    )
    found = document(report)
    if out is not None:
        write_whole(out, canonical_json(found))
        write_whole(out.with_suffix(PAGE), to_html(report).encode())
        print_lines(f"{out.resolve()}\n{out.with_suffix(PAGE).resolve()}", sys.stderr)
    if as_json:
        print_json(found)
    else:
        print_report(report)
    if (problem := problem_of(report)) is not None:
        raise problem
