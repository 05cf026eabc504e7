"""What has to be done on a server so that it has what it should. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from headway.data_contracts.store.documents import Frozen, Json
from headway.flows.deploy.resources import KINDS, ExistingResource, Kind, Resource

Action = Literal["create", "change", "remove", "refuse", "leave"]


class FieldChange(Frozen):
    field: str
    before: Json
    after: Json


class ResourceChange(Frozen):
    """One step. `refuse`: another's has its name, and nothing is done at all. `leave`: there, not ours, and fine."""

    action: Action
    kind: Kind
    name: str
    id: str = ""
    """On the server; empty for what is to be created."""
    fields: tuple[FieldChange, ...] = ()
    why: str = ""
    wanted: Resource | None = None

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}"


def difference(
    wanted: Sequence[Resource], found: Sequence[ExistingResource], *, adopt: bool = False
) -> tuple[ResourceChange, ...]:
    """The steps, in the order to take them: everything is made before what stands on it, and removed after it.

    What carries no mark is never removed, and changed only with `adopt`; a work pool without it is used as it is.
    """
    by_place: dict[tuple[Kind, str], list[ExistingResource]] = {}
    # Ours first: of two with one name, the other's is never changed in its place.
    for each in sorted(found, key=lambda each: not each.ours):
        by_place.setdefault((each.kind, each.name), []).append(each)
    made = [change for each in wanted for change in _make(each, by_place.get((each.kind, each.name), []), adopt)]
    places = {(each.kind, each.name) for each in wanted}
    gone = [change for place, there in by_place.items() for change in _clear(there, keep_first=place in places)]
    return (
        *sorted(made, key=lambda change: KINDS.index(change.kind)),
        *sorted(gone, key=lambda change: -KINDS.index(change.kind)),
    )


def _make(wanted: Resource, there: list[ExistingResource], adopt: bool) -> Iterator[ResourceChange]:
    kind, name = wanted.kind, wanted.name
    if not there:
        yield ResourceChange(action="create", kind=kind, name=name, wanted=wanted)
        return
    now = there[0]
    if not now.ours and kind == "work pool":
        yield ResourceChange(action="leave", kind=kind, name=name, id=now.id, why="made by others, used as it is")
    elif not now.ours and not adopt:
        yield ResourceChange(
            action="refuse", kind=kind, name=name, id=now.id, why="made by others, or for another profile"
        )
    elif changed := _changed(now.fields, wanted.fields):
        yield ResourceChange(action="change", kind=kind, name=name, id=now.id, fields=changed, wanted=wanted)


def _changed(before: dict[str, Json], after: dict[str, Json]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field=field, before=before.get(field), after=value)
        # Only what is wanted is compared: Prefect adds fields and defaults of its own.
        for field, value in after.items()
        if before.get(field) != value
    )


def _clear(there: list[ExistingResource], *, keep_first: bool) -> Iterator[ResourceChange]:
    """Those of ours that no file asks for any more, and doubles that a lost answer left behind."""
    for each in [each for each in there if each.ours][keep_first:]:
        if each.used_by_others:
            why = f"{', '.join(each.used_by_others)} of others stand on it"
            yield ResourceChange(action="leave", kind=each.kind, name=each.name, id=each.id, why=why)
        else:
            yield ResourceChange(action="remove", kind=each.kind, name=each.name, id=each.id)
