"""`headway history`: who became champion, when, why and instead of whom, and who did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.console import headed, plain_console
from headway.tasks.registry import decisions, model_refs
from headway.tasks.registry.decisions import RecordedDecision
from headway.tasks.registry.promotion_decision import Decision


class HistoryEntry(BaseModel):
    when: str
    event: str
    """`promoted` or `rolled back`, which moved the champion; or what did not: it stays `challenger`, `waits` for
    approval, or was `refused` by a person."""
    from_version: str | None
    to_version: str | None
    why: str
    by: str
    decision: str | None
    """Digest of the decision."""
    failed: list[str]
    """Checks that spoke against it."""
    override: str


class History(BaseModel):
    model: str
    workspace: str
    champion: str | None
    entries: list[HistoryEntry]
    """Oldest first."""


def read_history(workspace_uri: str, model: str) -> History:
    """Every move of the champion, and every decision against one, in order.

    Raises:
        ConfigError: no such model.
        IntegrityError: an entry or a decision is damaged.
    """
    workspace = Workspace.existing(workspace_uri)
    model_refs.require_model(workspace, model)
    decided = list(decisions.decisions(workspace, model))
    # Oldest first, so that of several numbers of a registration the newest is kept.
    registered = reversed(model_refs.versions(workspace, model))
    numbers = {entry.target: model_refs.version_detail(model, entry).version for entry in registered}
    events = [*_moves(workspace, model, decided, numbers), *_decisions_against(decided, numbers)]
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    return History(
        model=model,
        workspace=workspace.uri,
        champion=None if now is None else numbers.get(now.target),
        entries=[entry for _, entry in sorted(events, key=lambda event: event[0])],
    )


def _moves(
    workspace: Workspace, model: str, decided: Sequence[RecordedDecision], numbers: Mapping[Link, str]
) -> Iterator[tuple[float, HistoryEntry]]:
    kept = {each.entry.target.sha256: each.decision for each in decided}
    before: Link | None = None
    for entry in refs.history(workspace, model_refs.alias_ref(model, "champion")):
        move = model_refs.champion_detail(model, entry)
        decision = kept.get(move.decision or "")
        yield (
            entry.unix_s,
            HistoryEntry(
                when=entry.moved_at,
                event="rolled back" if move.how == "rollback" else "promoted",
                from_version=None if before is None else numbers.get(before),
                to_version=numbers.get(entry.target) or move.version,
                why=entry.reason,
                by=move.by,
                decision=move.decision,
                failed=[] if decision is None else [check.name for check in decision.failed],
                override="" if decision is None else decision.override,
            ),
        )
        before = entry.target


def _decisions_against(
    decided: Sequence[RecordedDecision], numbers: Mapping[Link, str]
) -> Iterator[tuple[float, HistoryEntry]]:
    for entry, evaluated, decision in decided:
        # Its move of the champion, which tells it, has an entry of its own.
        if decision.promote or decision.override:
            continue
        yield (
            entry.unix_s,
            HistoryEntry(
                when=entry.moved_at,
                event=_stays(decision),
                from_version=None if decision.champion is None else numbers.get(decision.champion),
                to_version=evaluated.version,
                why=decision.reason,
                by=evaluated.by,
                decision=entry.target.sha256,
                failed=[check.name for check in decision.failed],
                override="",
            ),
        )


def _stays(decision: Decision) -> str:
    """What a version is that did not become champion, in the words of a retrain's summary and of the commands."""
    if decision.waits:
        return "waits"
    return "refused" if decision.refused else "challenger"


def print_history(history: History) -> None:
    console = plain_console()
    champion = "no champion" if history.champion is None else f"version {history.champion} is champion"
    console.print(headed(history.model, f": {champion}"), end="\n\n")
    for entry in history.entries:
        was = "none" if entry.from_version is None else f"v{entry.from_version}"
        stays = entry.event not in ("promoted", "rolled back")
        arrow = f"v{entry.to_version} against {was}" if stays else f"{was} -> v{entry.to_version}"
        console.print(f"{entry.when}  {entry.event:<11}  {arrow}  {entry.by}")
        console.print(f"    {entry.why}")
        if entry.override:
            console.print(f"    against the policy ({', '.join(entry.failed)}): {entry.override}")
    if not history.entries:
        console.print("nothing was decided yet")
