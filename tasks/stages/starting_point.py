"""Which checkpoint `training.start_from` means: settled before a run begins, and kept for as long as it is unfinished.

An alias moves on when another model becomes champion. What a run began with is therefore written down as a ref of its
own, `starts/<pipeline>/<key>`, under the key of all its other inputs; a stopped run continues from that.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import CheckpointManifest, FittedState, Link, Registration, RunSpec
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import model_refs
from headway.tasks.registry.ref_details import StartDetail
from headway.training.config.start_spec import StartSpec

WHERE = "training.start_from"


class ResolvedStart(NamedTuple):
    """A run that knows its starting point."""

    run: RunSpec
    message: str
    """For a person: which version it is, and why."""


def checkpoint_today(context: RunContext, start: StartSpec) -> Link:
    """What the URI means to a run that did not make it."""
    _, _, registration = model_refs.resolve(context.workspace, start.model, to_start_from=True)
    return context.workspace.load(registration, Registration).checkpoint


def resolve_start(context: RunContext, run: RunSpec, start: StartSpec, held: Link | None = None) -> ResolvedStart:
    """The run with the checkpoint that its configuration means today, or meant when it began; nothing is written.

    Args:
        held: the checkpoint that it meant when the search began whose trial this is; None: of no search on record.

    Raises:
        ConfigError: no such model, or its rows were encoded by another fitted state.
    """
    workspace = context.workspace
    if held is not None:
        _require_same_encoding(workspace, held, run, start)
        message = f"checkpoint {held.sha256[:12]}, which {start.model} meant when the search began"
        return ResolvedStart(run.model_copy(update={"start": held}), message)
    message, now = _resolved_today(workspace, run, start)
    entry = refs.current(workspace, start_ref(run))
    if entry is not None and entry.target != now:
        started = run.model_copy(update={"start": entry.target})
        if not _is_finished(workspace, started):
            first = refs.detail_of(start_ref(run), entry, StartDetail).message
            return ResolvedStart(started, f"{first}, as the unfinished run began; {start.model} has moved since")
    _require_same_encoding(workspace, now, run, start)
    return ResolvedStart(run.model_copy(update={"start": now}), message)


def record_start(context: RunContext, settled: ResolvedStart) -> None:
    """Hold the starting point fast for a run that is about to begin."""
    if settled.run.start is None:
        return
    # The key is of the run without its start, since the start is what is looked up by it.
    name = start_ref(settled.run.model_copy(update={"start": None}))
    refs.ensure(context.workspace, name, settled.run.start, reason="a run began", detail={"message": settled.message})


def start_ref(run: RunSpec) -> str:
    """Args:
    run: without its starting point.
    """
    assert run.start is None
    return f"starts/{run.pipeline}/{run.sha256[:16]}"


def _resolved_today(workspace: Workspace, run: RunSpec, start: StartSpec) -> tuple[str, Link]:
    """What the URI means now, in words and as a checkpoint.

    A model that this very run made is not started from once more: becoming champion makes no work new.
    """
    name, version, link = model_refs.resolve(workspace, start.model, to_start_from=True)
    registration = workspace.load(link, Registration)
    made_by = workspace.load(registration.run, RunSpec)
    if made_by.start is not None and run.model_copy(update={"start": made_by.start}) == made_by:
        return f"checkpoint {made_by.start.sha256[:12]}, which {name} version {version} was made from", made_by.start
    return f"{name} version {version}, checkpoint {registration.checkpoint.sha256[:12]}", registration.checkpoint


def _is_finished(workspace: Workspace, run: RunSpec) -> bool:
    try:
        # Without re-hashing its files: all that counts here is whether it came to its end.
        return stages.recorded(workspace, "launch", stages.stage_key("launch", {"run": run.sha256})) is not None
    except IntegrityError:
        return False


def _require_same_encoding(workspace: Workspace, checkpoint: Link, run: RunSpec, start: StartSpec) -> None:
    if start.encoding == "any":
        return
    parent = workspace.load(workspace.load(checkpoint, CheckpointManifest).run, RunSpec)
    if parent.fitted == run.fitted:
        return
    states = [workspace.load(link, FittedState) for link in (parent.fitted, run.fitted)]
    # Two fits, on other data, may come to the same state: what counts is what they encode.
    theirs, ours = ((state.encoder, [file.sha256 for file in state.files], state.statistics) for state in states)
    if theirs != ours:
        raise ConfigError(
            f"the rows of {start.model} were encoded by {parent.fitted.short}, this run's by {run.fitted.short}: "
            "the same numbers mean something else.",
            where=WHERE,
            advice="Start from a model of this pipeline, or, where only a new head reads what differs, say "
            "start_from.encoding: any and start_from.fresh.",
        )
