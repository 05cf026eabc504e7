"""MLflow's aliases `challenger` and `champion`, brought after the refs, which decide.

A kill or an outage between the two leaves an alias that is behind its ref. What Headway last gave an alias is written
down, so that whoever comes next brings it up to date, while one that somebody moved in MLflow is reported and left.

The ref `challenger` stays at the newest candidate. No version has the alias while that is the champion too, so that no
page in MLflow says both; once another version is champion, it is given back.
"""

from __future__ import annotations

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.registry import model_refs
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.ref_details import MlflowAliasDetail


def sync_mlflow_aliases(versions: ModelVersions, *, take_over: bool = False) -> None:
    """Bring a store's aliases to the versions that the refs' registrations have there.

    Writers that do not see each other's locks may pass here at once; each repeats until the refs that it projected are
    the newest, and takes none of the others' projections for a stranger's move.

    Args:
        take_over: also an alias that somebody moved: a person asked Headway for just this move. Else it is reported.
    """
    workspace, model = versions.context.workspace, versions.model
    projections = {alias: _Projection(versions, alias, take_over=take_over) for alias in model_refs.ALIASES}
    while True:
        # Notes first: no move that is read after them is older than one that they know of.
        notes = {alias: refs.current(workspace, each.note) for alias, each in projections.items()}
        moves = {alias: refs.current(workspace, model_refs.alias_ref(model, alias)) for alias in projections}
        has_won = not model_refs.is_challenger(moves["challenger"], moves["champion"])
        try:
            # Taken first and given last: in between, the champion's page would say challenger too.
            for alias in ("challenger", "champion") if has_won else ("champion", "challenger"):
                if (move := moves[alias]) is not None:
                    is_none = alias == "challenger" and has_won
                    projections[alias].bring_to(move, notes[alias], "" if is_none else versions.ensure(move.target))
        except RefConflict:
            continue
        numbers = {alias: 0 if move is None else move.number for alias, move in moves.items()}
        if all(refs.newest_number(workspace, model_refs.alias_ref(model, each)) == numbers[each] for each in numbers):
            return


class _Projection:
    """One alias of one store, while somebody brings it after the refs."""

    def __init__(self, versions: ModelVersions, alias: str, *, take_over: bool) -> None:
        self.note = model_refs.alias_ref(versions.model, f"projected-{alias}")
        """The ref of what Headway last gave it."""
        self._versions, self._alias, self._take_over = versions, alias, take_over
        self._own: set[str] = set()
        self._is_left = False

    def bring_to(self, move: RefEntry, last: RefEntry | None, ours: str) -> None:
        """Set it, and note that, unless it is there, or somebody moved it.

        Args:
            move: the ref's newest.
            last: the newest note.
            ours: the version that is to have it; empty for none.

        Raises:
            RefConflict: another writer noted what it gave it meanwhile.
        """
        versions, model, alias = self._versions, self._versions.model, self._alias
        noted = None if last is None else refs.detail_of(self.note, last, MlflowAliasDetail)
        known = noted if noted is not None and noted.tracking_uri == versions.store else None
        theirs = versions.alias(alias) or ""
        if self._is_left or self._is_foreign(theirs, ours, move, known):
            if not self._is_left:
                self._report(theirs, ours)
            self._is_left = not self._take_over
            if self._is_left:
                return
        if theirs != ours and ours:
            versions.client.set_registered_model_alias(model, alias, ours)
        elif theirs != ours:
            versions.client.delete_registered_model_alias(model, alias)
        self._own.add(ours)
        if known is None or (known.version, known.entry) != (ours, move.number):
            detail = {"version": ours, model_refs.STORE: versions.store, "entry": move.number}
            refs.move(
                versions.context.workspace, self.note, move.target, expected=last, reason="projected", detail=detail
            )

    def _is_foreign(self, theirs: str, ours: str, move: RefEntry, known: MlflowAliasDetail | None) -> bool:
        """Whether a stranger gave it to this version; what Headway sets, or another writer is just setting, is none."""
        if theirs in {"", ours, *self._own} or (known is not None and theirs == known.version):
            return False
        since = move.number if known is None or known.entry is None else min(move.number, known.entry)
        return theirs not in self._versions_since(since)

    def _versions_since(self, number: int) -> set[str]:
        """Versions that an entry of the ref or a later one moved it to: their writers may be at the alias now.

        The entry's own is one of them also where none is to have it: who gave it back may have been overtaken.
        """
        versions, found = self._versions, set()
        workspace, model = versions.context.workspace, versions.model
        for entry in refs.newest_first(workspace, model_refs.alias_ref(model, self._alias)):
            if entry.number < number:
                break
            version = model_refs.version_of(workspace, model, entry.target, store=versions.store)
            found |= {version} if version is not None else set()
        return found

    def _report(self, theirs: str, ours: str) -> None:
        note = f"MLflow's alias {self._versions.model}@{self._alias} was moved outside Headway: it is version {theirs}"
        if self._take_over:
            message = f"{note}, and is {f'set to {ours}' if ours else 'taken away'} now."
        else:
            message = (
                f"{note}, Headway's refs say {ours or 'none'}. Set it back, or promote or roll back through Headway."
            )
        self._versions.context.ledger.event("alias.moved", message=message)
