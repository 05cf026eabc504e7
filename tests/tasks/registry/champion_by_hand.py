"""What a person does with a champion, and what the workspace then says."""

from __future__ import annotations

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.flows.show.champion_history import HistoryEntry, read_history
from headway.tasks.registry import champion_moves, model_refs
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.promotion_spec import PromotionSpec

MODEL = "tiny"
DEFAULT = PromotionSpec()


def champion_of(workspace: Workspace) -> RefEntry:
    entry = refs.current(workspace, model_refs.alias_ref(MODEL, "champion"))
    assert entry is not None
    return entry


def promote(versions: ModelVersions, target: Link, policy: PromotionSpec = DEFAULT, override: str = "") -> None:
    champion_moves.promote(versions, target, why="asked for", by="ada@desk", policy=policy, override=override)


def back(versions: ModelVersions, to: str = "") -> None:
    now, target = champion_moves.rollback_target(versions.context.workspace, MODEL, to)
    champion_moves.rollback(versions, target, expected=now, why="it was slow", by="ada@desk")


def lines(workspace: Workspace) -> list[tuple[str, str | None, str | None]]:
    entries: list[HistoryEntry] = read_history(workspace.uri, MODEL).entries
    return [(entry.event, entry.from_version, entry.to_version) for entry in entries]
