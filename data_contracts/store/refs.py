"""Refs: the only things that move. `refs/<name>/<n>.json` is appended to, never rewritten.

Creating entry n exclusively is the compare-and-set: of two writers that both saw n-1, one wins.

An entry says which ref's it is, its number and the digest of the entry before, under a digest of its own. So one that
was put in another's place, or brought back, shows by itself, and one that was changed or taken from the middle shows
where a history is read. What nothing here can show is that the newest entries were taken away, or that all from one on
were written anew: nothing is signed.
"""

from __future__ import annotations

import contextlib
import datetime
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import IntegrityError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES, parse_canonical

ADVICE = (
    "Put the file back from a copy of the workspace. Without one, move it aside, and every later entry beside it: "
    "those moves are forgotten then, and the next run decides anew."
)
FORMAT_VERSION = 1
LATEST_UNIX_S = 253402300800.0
"""The year 10000, which no calendar here knows."""
Detail = TypeVar("Detail", bound=BaseModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefEntry:
    number: int
    target: Link
    reason: str
    unix_s: float
    detail: dict[str, Any]
    prev: str | None = None
    """Digest of the entry before, empty for the first; None where that could not be read when this one was made."""
    sha256: str = ""
    """Its own digest; empty of one that was derived and not read."""

    @property
    def moved_at(self) -> str:
        """ISO 8601, in UTC, to the second."""
        return datetime.datetime.fromtimestamp(self.unix_s, datetime.UTC).isoformat(timespec="seconds")


def place_of(name: str, entry: RefEntry) -> str:
    """The file of a ref's entry."""
    return _entry_path(name, entry.number)


def detail_of(name: str, entry: RefEntry, kind: type[Detail]) -> Detail:
    """What an entry says besides its target, as each entry of its ref does.

    Raises:
        IntegrityError: this one does not; names the field.
    """
    try:
        return kind.model_validate(entry.detail)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        message = f"does not say its {str(first['loc'][0])!r} ({first['msg'].lower()})."
        raise IntegrityError(message, where=place_of(name, entry), advice=ADVICE) from error


def entry_path(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.json"


def _entry_path(name: str, number: int) -> str:
    return entry_path(f"refs/{name}", number)


def current(workspace: Workspace, name: str) -> RefEntry | None:
    """The newest entry, or None for a ref nobody made yet.

    A listing says where to look; entries are asked for by name until there is none, for a store's listing may lag.
    """
    number = newest_number(workspace, name)
    return None if number == 0 else read_entry(workspace, name, number)


def newest_number(workspace: Workspace, name: str) -> int:
    """The newest entry's, whether it can be read or not; 0 where there is none."""
    return newest_entry(workspace, f"refs/{name}")


def newest_entry(workspace: Workspace, folder: str) -> int:
    """The same of a folder whose entries are numbered as a ref's are."""
    number = max(map(number_of, workspace.names(folder)), default=0)
    # From the listing on by name: a listing may lag behind what was just put.
    while workspace.exists(entry_path(folder, number + 1)):
        number += 1
    return number


def number_of(file: str) -> int:
    """The entry a file holds; 0 for anything else."""
    digits = file.removesuffix(".json")
    return int(digits) if file.endswith(".json") and digits.isascii() and digits.isdigit() else 0


def history(workspace: Workspace, name: str, known: Sequence[RefEntry] = ()) -> list[RefEntry]:
    """All entries, oldest first.

    Args:
        known: what was read before; entries never change, so that only later ones are read.

    Raises:
        IntegrityError: one is gone or damaged, or does not follow the one before.
    """
    entries = list(known)
    for number in range(len(known) + 1, newest_number(workspace, name) + 1):
        entry = read_entry(workspace, name, number)
        # Each entry carries the digest of the one before, so a replaced entry shows here.
        _require_succession(name, entries[-1] if entries else None, entry)
        entries.append(entry)
    return entries


def newest_first(workspace: Workspace, name: str) -> Iterator[RefEntry]:
    """All entries, each read when it is asked for, and held against the one that was read before it.

    Raises:
        IntegrityError: as of `history`.
    """
    later = None
    for number in range(newest_number(workspace, name), 0, -1):
        entry = read_entry(workspace, name, number)
        if later is not None:
            _require_succession(name, entry, later)
        yield (later := entry)


def move(
    workspace: Workspace,
    name: str,
    target: Link,
    *,
    expected: RefEntry | int | None,
    reason: str,
    detail: dict[str, Any] | None = None,
) -> RefEntry:
    """Point the ref at `target`, provided that `expected` is still its newest entry.

    Args:
        expected: or its number, of one that perhaps cannot be read. If it cannot, the new entry says that it does not
            know the one before: whoever puts that back from a copy breaks nothing.

    Raises:
        RefConflict: somebody moved it first; nothing was changed.
    """
    number = 1 + (expected.number if isinstance(expected, RefEntry) else expected or 0)
    value = {
        "format_version": FORMAT_VERSION,
        "ref": name,
        "number": number,
        "prev": _digest_of(workspace, name, expected),
        "target": target.model_dump(),
        "reason": reason,
        "unix_s": time.time(),
        "detail": detail or {},
        # No two writers write the same bytes: so each knows its own entry again when the answer to a put was lost.
        "writer": uuid.uuid4().hex,
    }
    try:
        sealed = canonical_json({**value, "sha256": sha256_of(value)})
        # Exclusive: this is the compare-and-set, in a folder as in an object store.
        workspace.publish(_entry_path(name, number), sealed, exclusive=True)
    except FileExistsError as error:
        raise RefConflict(
            f"ref {name} was moved by another writer (entry {number}).",
            advice="Read it again and decide anew.",
        ) from error
    # Read back: what is returned is what others will read, after a lost answer too.
    return read_entry(workspace, name, number)


def ensure(
    workspace: Workspace, name: str, target: Link, *, reason: str, detail: dict[str, Any] | None = None
) -> RefEntry:
    """Point the ref at `target`, whatever it points at: for moves that no earlier entry decides about.

    Returns:
        The entry that points at it: the newest, if it does already, also by a writer that was first just now.
    """
    # In a loop: who loses the race looks again, and may find the target there already.
    while True:
        newest = current(workspace, name)
        if newest is not None and newest.target == target:
            return newest
        with contextlib.suppress(RefConflict):
            return move(workspace, name, target, expected=newest, reason=reason, detail=detail)


def _digest_of(workspace: Workspace, name: str, expected: RefEntry | int | None) -> str | None:
    if isinstance(expected, RefEntry) and expected.sha256:
        return expected.sha256
    number = expected.number if isinstance(expected, RefEntry) else expected or 0
    try:
        return read_entry(workspace, name, number).sha256 if number else ""
    except IntegrityError:
        # A damaged predecessor must not keep the ref from moving; the entry says that it does not know it.
        return None


def _require_succession(name: str, before: RefEntry | None, entry: RefEntry) -> None:
    """Raises `IntegrityError`: an entry was not made after the one that lies before it."""
    # None: the entry was made over one that could not be read, and says nothing of it.
    if entry.prev not in (None, "" if before is None else before.sha256):
        message = "it does not follow the entry before: one of the two was replaced."
        raise IntegrityError(message, where=place_of(name, entry), advice=ADVICE)


def read_entry(workspace: Workspace, name: str, number: int) -> RefEntry:
    """Raises `IntegrityError`: it is gone, damaged, or another's."""
    where = _entry_path(name, number)
    try:
        # Canonical to the byte: an added blank or a doubled key would not change the digest below.
        value = parse_canonical(workspace.read(where, MAX_RECORD_BYTES))
        own = value.pop("sha256")
        if own != sha256_of(value):
            raise IntegrityError("its content differs from the digest it carries.", where=where, advice=ADVICE)
        if value["format_version"] != FORMAT_VERSION:
            raise IntegrityError(
                f"format_version {value['format_version']} is none that this Headway reads.",
                where=where,
                advice="Upgrade Headway.",
            )
        # Both are part of the entry, so that a copy of it elsewhere is noticed.
        if (value["ref"], value["number"]) != (name, number):
            message = f"is entry {value['number']} of ref {value['ref']}, put in another's place."
            raise IntegrityError(message, where=where, advice=ADVICE)
        unix_s = float(value["unix_s"])
        # A time that no calendar can show would end every command that lists the history.
        if not 0 <= unix_s < LATEST_UNIX_S:
            raise ValueError(unix_s)
        return RefEntry(
            number=number,
            target=Link.model_validate(value["target"]),
            reason=str(value["reason"]),
            unix_s=unix_s,
            detail=dict(value["detail"]),
            prev=value["prev"],
            sha256=own,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError("not a readable ref entry.", where=where, advice=ADVICE) from error
