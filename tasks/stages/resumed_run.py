"""A run that a person names to be resumed: which it is, and which of its checkpoints are quarantined before.

A run is deterministic, so going back gives the same bits: it is for checkpoints that nobody trusts any more, such as
those of a machine that turned out to be broken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.core.identity import current_user
from headway.tasks.core.run_result import result_path
from headway.tasks.ownership.run_lease import RunLease, leased_run
from headway.tasks.rows.fold_scores import fold_of
from headway.training.checkpoint.layout import MANIFEST_NAME, checkpoint_path, committed_steps, run_folder, step_of
from headway.training.launch.base.fence import NO_FENCE
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.protocol import DETACHED
from headway.training.launch.base.run_lock import owning


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
    if (fold := fold_of(workspace, run)) is not None:
        raise ConfigError(
            f"run {link.sha256[:16]} trains the model of {fold}, which evaluates another and is never registered.",
            where=workspace.uri,
            advice=f"`headway retrain {run.pipeline}` resumes it.",
        )
    # On another pipeline's launch settings and registry it would end under the wrong name.
    if pipeline and run.pipeline != pipeline:
        raise ConfigError(f"run {link.sha256[:16]} is {run.pipeline}'s, not {pipeline}'s.", where=workspace.uri)
    return link, run


def rewind_run(context: RunContext, run: Link, step: int, *, why: str) -> list[int]:
    """Quarantine the run's checkpoints past a step, so that training resumes from there; on record in the ledger.

    On this machine they are kept in the run's quarantine; what was published to a remote workspace is taken away there.

    Args:
        step: 0: from the beginning.

    Returns:
        Steps of those that were quarantined.

    Raises:
        ConfigError: it has no checkpoint of that step.
        EnvironmentProblem: somebody trains the run, or watches its job, here or on another machine.
        RunStopped: the time was over before that could be told.
    """
    workspace, name = context.workspace, run.sha256[:16]
    run_dir = workspace.local_path(run_folder(run))
    # For as long as that takes, whatever the pipeline's own lease is.
    with _alone(run_dir, name), leased_run(context, run, LaunchSpec()) as lease:
        newer = _quarantine(workspace, run, run_dir, step, lease)
    message = f"run {name} goes back to step {step:,}, by {current_user()}: {why}"
    context.ledger.event(
        "run.went_back", run=name, step=step, quarantined=newer, by=current_user(), why=why, message=message
    )
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


def _quarantine(workspace: Workspace, run: Link, run_dir: Path, step: int, lease: RunLease) -> list[int]:
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
                lease.require()
                workspace.remove(f"{folder}/{file}")
        if each in here:
            # Without a fence: both locks are held, so that no attempt is at work.
            NO_FENCE.quarantine(workspace.local_path(folder), run_dir / "quarantine")
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
