"""Versions that nobody wants to prove, serve or go back to any more: said once, by whom and why, and for ever.

`models/<name>/retired` names their registrations. A retired version keeps its number, its card and its lines in the
history; what it stands on is needed by it no longer, so that `headway clean` may let go of it.
"""

from __future__ import annotations

import contextlib

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError, RefConflict
from headway.data_contracts.store.plain_text import MAX_FIELD_CHARS, one_line
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.registry import model_refs
from headway.tasks.registry.mlflow_aliases import sync_mlflow_aliases
from headway.tasks.registry.model_versions import ModelVersions

RETIRED_TAG = "headway.retired"


def retire(versions: ModelVersions, target: Link, *, why: str, by: str) -> RefEntry:
    """Write down that a version is retired, and tag it in MLflow; twice is once.

    Raises:
        ConfigError: it is the champion, or the one that a rollback would go to.
    """
    workspace, model = versions.context.workspace, versions.model
    version = versions.ensure(target)
    _require_unneeded(workspace, model, target, version)
    while (entry := model_refs.retirement_of(workspace, model, target)) is None:
        name = model_refs.retired_ref(model)
        expected, detail = refs.current(workspace, name), {"version": version, "by": by}
        with contextlib.suppress(RefConflict):
            refs.move(workspace, name, target, expected=expected, reason=why, detail=detail)
    message = f"{entry.reason} ({model_refs.retired_by(model, entry)})"
    versions.client.set_model_version_tag(model, version, RETIRED_TAG, one_line(message, MAX_FIELD_CHARS))
    sync_mlflow_aliases(versions)
    return entry


def _require_unneeded(workspace: Workspace, model: str, target: Link, version: str) -> None:
    history = refs.history(workspace, model_refs.alias_ref(model, "champion"))
    if history and history[-1].target == target:
        problem, advice = f"version {version} is the champion of {model!r}.", "Promote another first, or roll back."
    elif model_refs.previous_champion(model, history) == target:
        problem = f"version {version} is the one that a rollback of {model!r} would go to."
        advice = "It may be retired once there are two later champions."
    else:
        return
    raise ConfigError(problem, where=workspace.uri, advice=advice)


def retired_registrations(workspace: Workspace) -> set[str]:
    """Digests of retired registrations that may lose what they stand on.

    Today's champion and the one before stay whole, even if one was promoted at the moment in which it was retired.

    Raises:
        IntegrityError: an entry of a ref is damaged.
    """
    found: set[str] = set()
    for model in workspace.names("refs/models"):
        retired = {entry.target.sha256 for entry in refs.history(workspace, model_refs.retired_ref(model))}
        if retired:
            history = refs.history(workspace, model_refs.alias_ref(model, "champion"))
            # Retiring and promoting are moves of two refs, so that no compare-and-set keeps them apart.
            needed = (history[-1].target if history else None, model_refs.previous_champion(model, history))
            found |= retired - {link.sha256 for link in needed if link is not None}
    return found
