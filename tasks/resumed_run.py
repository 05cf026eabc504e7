"""A run that a person names to go on with: which it is, and which of its checkpoints are put aside before.

A run is deterministic, so going back gives the same bits: it is for checkpoints that nobody trusts any more, such as
those of a machine that turned out to be broken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from data_contracts.documents import Link, RunSpec
from data_contracts.errors import ConfigError
from data_contracts.publication import Workspace
from tasks.context import RunContext
from tasks.identity import who
from tasks.launch import result_path
from tasks.run_claims import RunClaim, claimed_run
from training.checkpoint.layout import MANIFEST_NAME, checkpoint_path, committed_steps, run_folder, step_of
from training.launch.mandate import NO_MANDATE
from training.launch.protocol import DETACHED
from training.launch.run_lock import owning
from training.launch.spec import LaunchSpec


def named_run(workspace: Workspace, name: str, pipeline: str = "") -> tuple[Link, RunSpec]:
    """The one run whose name begins so, and what it is.

    Args:
        pipeline: whose run it has to be; empty: anyone's.

    Raises:
        ConfigError: none or several do, it is another pipeline's, or finished.
        IntegrityError: its document is damaged.
    """
    there = [found.removesuffix(".json") for found in workspace.names(f"documents/{RunSpec.kind}")]
    matching = [Link(kind=RunSpec.kind, sha256=digest) for digest in there if name and digest.startswith(name)]
    if len(matching) != 1:
        advice = "`headway status` lists them; a beginning is enough."
        raise ConfigError(f"{name!r} names {len(matching)} runs.", where=workspace.uri, advice=advice)
    (link,) = matching
    if workspace.exists(result_path(link)):
        raise ConfigError(
            f"run {link.sha256[:16]} is finished: there is nothing to resume.",
            where=workspace.uri,
            advice="`headway reproduce` trains the version that came of it again, beside it.",
        )
    run = workspace.load(link, RunSpec)
    if pipeline and run.pipeline != pipeline:
        raise ConfigError(f"run {link.sha256[:16]} is {run.pipeline}'s, not {pipeline}'s.", where=workspace.uri)
    return link, run


def go_back(context: RunContext, run: Link, step: int, *, why: str) -> list[int]:
    """Put the run's checkpoints past a step aside, so that training goes on from there; on record in the ledger.

    On this machine they are kept in the run's quarantine; what was published to a remote workspace is taken away there.

    Args:
        step: 0: from the beginning.

    Returns:
        Steps of those that were put aside.

    Raises:
        ConfigError: it has no checkpoint of that step.
        EnvironmentProblem: somebody trains the run, or watches its job, here or on another machine.
        RunStopped: the time was over before that could be told.
    """
    workspace, name = context.workspace, run.sha256[:16]
    run_dir = workspace.local_path(run_folder(run))
    # For as long as that takes, whatever the pipeline's own lease is.
    with _alone(run_dir, name), claimed_run(context, run, LaunchSpec()) as claim:
        newer = _put_aside(workspace, run, run_dir, step, claim)
    told = f"run {name} goes back to step {step:,}, by {who()}: {why}"
    context.ledger.event("run.went_back", run=name, step=step, put_aside=newer, who=who(), why=why, message=told)
    return newer


@contextlib.contextmanager
def _alone(run_dir: Path, name: str) -> Iterator[None]:
    """Hold both locks of a run: whoever trains it has one, and whoever watches the job that does the other."""
    folders = (run_dir, run_dir / DETACHED)
    run_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        for folder in filter(Path.is_dir, folders):
            held.enter_context(owning(folder, name))
        yield


def _put_aside(workspace: Workspace, run: Link, run_dir: Path, step: int, claim: RunClaim) -> list[int]:
    here, there = set(committed_steps(run_dir / "checkpoints")), set(_published(workspace, run))
    if step not in here | there | {0}:
        kept = ", ".join(f"{each:,}" for each in sorted(here | there)) or "none"
        raise ConfigError(f"it has no checkpoint of step {step:,}.", where=str(run_dir), advice=f"It has: {kept}.")
    newer = sorted(each for each in here | there if each > step)
    for each in newer:
        folder = checkpoint_path(run_folder(run), each)
        if each in there:
            # Its manifest first: without one it is no checkpoint, should this be interrupted.
            for file in sorted(workspace.names(folder), key=lambda file: file != MANIFEST_NAME):
                claim.require()
                workspace.remove(f"{folder}/{file}")
        if each in here:
            NO_MANDATE.put_aside(workspace.local_path(folder), run_dir / "quarantine")
    return newer


def _published(workspace: Workspace, run: Link) -> list[int]:
    """Steps of checkpoints that lie in a remote workspace; empty where the workspace is a folder of this machine."""
    if workspace.is_local:
        return []
    steps = (step_of(name) for name in workspace.names(f"{run_folder(run)}/checkpoints"))
    # Its manifest comes last: what a dying machine published half of is no checkpoint.
    return [
        step
        for step in steps
        if step is not None and workspace.exists(f"{checkpoint_path(run_folder(run), step)}/{MANIFEST_NAME}")
    ]
