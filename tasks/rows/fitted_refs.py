"""Which fitted state a pipeline uses: what its ref says, or must have said where its newest entry is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import IntegrityError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.core.context import RunContext
from headway.tasks.rows.fold_scores import fold_of
from headway.training.config.shards import ShardSpec

RECOVERED = "the entry before is damaged; this is what the last training went with"


def fitted_ref(pipeline: str) -> str:
    return f"fitted/{pipeline}"


def detail_of(spec: ShardSpec) -> dict[str, Any]:
    """What an entry says beside its state: what that was fitted for, as far as the state does not say it itself."""
    return {"split": spec.splitting, "fit": spec.fit}


def state_in_use(workspace: Workspace, pipeline: str) -> RefEntry | None:
    """The ref's newest entry, derived where it is damaged; None before the first fit.

    Raises:
        IntegrityError: it is damaged, and no training says what it was.
    """
    try:
        return refs.current(workspace, fitted_ref(pipeline))
    except IntegrityError:
        with contextlib.suppress(IntegrityError):  # of a document: then it cannot be told, either
            if (run := _last_trained(workspace, pipeline)) is not None:
                return _derived(workspace, refs.newest_number(workspace, fitted_ref(pipeline)), run)
        raise


def _derived(workspace: Workspace, number: int, run: RunSpec) -> RefEntry:
    spec = ShardSpec.model_validate(workspace.load(run.manifest, ShardManifest).spec)
    return RefEntry(number=number, target=run.fitted, reason=RECOVERED, unix_s=0.0, detail=detail_of(spec))


def repaired_state_in_use(context: RunContext) -> RefEntry | None:
    """The same; what was derived is written down, after the damaged entry, which stays as it is."""
    name = fitted_ref(context.pipeline)
    while True:
        try:
            return refs.current(context.workspace, name)
        except IntegrityError as error:
            entry = state_in_use(context.workspace, context.pipeline)
            if entry is None:
                raise
            message = (
                f"{error.where}: {error.what} {entry.target.short}, which the last training went with, stays in use."
            )
        with contextlib.suppress(RefConflict):  # another retrain has repaired it: its entry is read again
            refs.move(context.workspace, name, entry.target, expected=entry, reason=RECOVERED, detail=entry.detail)
            context.report_damage("fit", message)


def _last_trained(workspace: Workspace, pipeline: str) -> RunSpec | None:
    """The pipeline's run that ended last; before any has, the only one; None where that leaves a choice."""
    runs = list(_runs(workspace, pipeline))
    ended_unix_s = {run.sha256: _ended_unix_s(workspace, run) for run in runs}
    last = max(runs, key=lambda run: ended_unix_s[run.sha256], default=None)
    if last is None or (not any(ended_unix_s.values()) and len({run.fitted for run in runs}) > 1):
        return None
    return last


def _runs(workspace: Workspace, pipeline: str) -> Iterator[RunSpec]:
    for name in workspace.names(f"documents/{RunSpec.kind}"):
        run = workspace.load(Link(kind=RunSpec.kind, sha256=name.removesuffix(".json")), RunSpec)
        # A fold's model has a state of its own, which saw no row of the fold.
        if run.pipeline == pipeline and fold_of(workspace, run) is None:
            yield run


def _ended_unix_s(workspace: Workspace, run: RunSpec) -> float:
    """0 for a run that did not end."""
    record = stages.recorded(workspace, "launch", stages.stage_key("launch", {"run": run.sha256}))
    return 0.0 if record is None else float(record.provenance.get("unix_s", 0.0))
