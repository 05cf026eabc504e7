"""Refs: the only things that move. `refs/<name>/<n>.json` is appended to, never rewritten.

Creating entry n exclusively is the compare-and-set: of two writers that both saw n-1, one wins.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from data_contracts.digests import canonical_json, sha256_of
from data_contracts.documents import Link
from data_contracts.errors import IntegrityError, RefConflict
from data_contracts.publication import Workspace

ADVICE = (
    "Put the file back from a copy of the workspace. Without one, move it aside, and every later entry beside it: "
    "those moves are forgotten then, and the next run decides anew."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefEntry:
    number: int
    target: Link
    reason: str
    unix_s: float
    detail: dict[str, Any]

    @property
    def moved_at(self) -> str:
        """ISO 8601, in UTC, to the second."""
        return datetime.datetime.fromtimestamp(self.unix_s, datetime.UTC).isoformat(timespec="seconds")


def entry_path(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.json"


def _entry_path(name: str, number: int) -> str:
    return entry_path(f"refs/{name}", number)


def current(workspace: Workspace, name: str) -> RefEntry | None:
    """The newest entry, or None for a ref nobody made yet.

    A listing says where to look; entries are asked for by name until there is none, for a store's listing may lag.
    """
    number = newest_number(workspace, name)
    return None if number == 0 else _read(workspace, name, number)


def newest_number(workspace: Workspace, name: str) -> int:
    """The newest entry's, whether it can be read or not; 0 where there is none."""
    return newest_entry(workspace, f"refs/{name}")


def newest_entry(workspace: Workspace, folder: str) -> int:
    """The same of a folder whose entries are numbered as a ref's are."""
    number = max(map(number_of, workspace.names(folder)), default=0)
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
    """
    newest = newest_number(workspace, name)
    return [*known, *(_read(workspace, name, number) for number in range(len(known) + 1, newest + 1))]


def newest_first(workspace: Workspace, name: str) -> Iterator[RefEntry]:
    """All entries, each read when it is asked for."""
    for number in range(newest_number(workspace, name), 0, -1):
        yield _read(workspace, name, number)


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
        expected: or its number, of one that cannot be read.

    Raises:
        RefConflict: somebody moved it first; nothing was changed.
    """
    number = 1 + (expected.number if isinstance(expected, RefEntry) else expected or 0)
    value = {
        "format_version": 1,
        "target": target.model_dump(),
        "reason": reason,
        "unix_s": time.time(),
        "detail": detail or {},
        # No two writers write the same bytes: so each knows its own entry again when the answer to a put was lost.
        "writer": uuid.uuid4().hex,
    }
    try:
        sealed = canonical_json({**value, "sha256": sha256_of(value)})
        workspace.publish(_entry_path(name, number), sealed, exclusive=True)
    except FileExistsError as error:
        raise RefConflict(
            f"ref {name} was moved by another writer (entry {number}).",
            advice="Read it again and decide anew.",
        ) from error
    return _read(workspace, name, number)


def ensure(
    workspace: Workspace, name: str, target: Link, *, reason: str, detail: dict[str, Any] | None = None
) -> RefEntry:
    """Point the ref at `target`, whatever it points at: for moves that no earlier entry decides about.

    Returns:
        The entry that points at it: the newest, if it does already, also by a writer that was first just now.
    """
    while True:
        newest = current(workspace, name)
        if newest is not None and newest.target == target:
            return newest
        with contextlib.suppress(RefConflict):
            return move(workspace, name, target, expected=newest, reason=reason, detail=detail)


def _read(workspace: Workspace, name: str, number: int) -> RefEntry:
    where = _entry_path(name, number)
    try:
        value = json.loads(workspace.read(where))
        if value.pop("sha256") != sha256_of(value):
            raise IntegrityError("its content differs from the digest it carries.", where=where, advice=ADVICE)
        return RefEntry(
            number=number,
            target=Link.model_validate(value["target"]),
            reason=str(value["reason"]),
            unix_s=float(value["unix_s"]),
            detail=dict(value["detail"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError("not a readable ref entry.", where=where, advice=ADVICE) from error
