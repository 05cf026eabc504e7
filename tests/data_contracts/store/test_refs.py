"""A ref moves by compare-and-set: no update is lost, and its history stays."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import IntegrityError, RefConflict
from headway.data_contracts.store.publication import Workspace


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.process)])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    places = {
        "folder": lambda: str(tmp_path / "workspace"),
        "memory": lambda: f"memory://{uuid.uuid4().hex}",
        "s3": lambda: f"s3://{request.getfixturevalue('new_bucket')()}/team/prefix",
    }
    return Workspace.create(places[request.param]())


def target(number: int) -> Link:
    return Link(kind="registration", sha256=f"{number:064x}")


def test_a_ref_nobody_made_is_none(workspace: Workspace) -> None:
    assert refs.current(workspace, "champion") is None
    assert refs.history(workspace, "champion") == []


def test_a_ref_keeps_its_history_in_order(workspace: Workspace) -> None:
    entry = None
    for number in range(12):
        entry = refs.move(
            workspace, "champion", target(number), expected=entry, reason=f"r{number}", detail={"n": number}
        )
    history = refs.history(workspace, "champion")
    assert [each.target for each in history] == [target(number) for number in range(12)]
    assert [each.number for each in history] == list(range(1, 13))
    assert refs.current(workspace, "champion") == history[-1] == entry
    assert history[3].reason == "r3"
    assert history[3].detail == {"n": 3}


def test_who_knows_the_history_reads_what_came_since_alone(workspace: Workspace) -> None:
    first = refs.move(workspace, "champion", target(1), expected=None, reason="first")
    second = refs.move(workspace, "champion", target(2), expected=first, reason="second")
    remembered = [dataclasses.replace(each, reason="remembered") for each in (first, second)]
    assert refs.history(workspace, "champion", remembered[:1]) == [remembered[0], second]
    assert refs.history(workspace, "champion", remembered) == remembered


def test_a_writer_that_saw_an_older_entry_is_refused_and_changes_nothing(workspace: Workspace) -> None:
    first = refs.move(workspace, "champion", target(1), expected=None, reason="first")
    second = refs.move(workspace, "champion", target(2), expected=first, reason="second")
    for stale in (None, first):
        with pytest.raises(RefConflict, match="moved by another writer"):
            refs.move(workspace, "champion", target(3), expected=stale, reason="late")
    assert refs.current(workspace, "champion") == second


def test_refs_do_not_touch_each_other(workspace: Workspace) -> None:
    refs.move(workspace, "a/champion", target(1), expected=None, reason="")
    refs.move(workspace, "b/champion", target(2), expected=None, reason="")
    current = refs.current(workspace, "a/champion")
    assert current is not None
    assert current.target == target(1)


def test_many_writers_never_lose_an_update(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    num_writers, num_moves = 8, 10
    start = threading.Barrier(num_writers)

    def count_up() -> None:
        start.wait()
        for _ in range(num_moves):
            while True:
                seen = refs.current(workspace, "counter")
                value = 0 if seen is None else seen.detail["value"]
                try:
                    refs.move(
                        workspace, "counter", target(1), expected=seen, reason="count", detail={"value": value + 1}
                    )
                    break
                except RefConflict:
                    continue

    writers = [threading.Thread(target=count_up) for _ in range(num_writers)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    values = [entry.detail["value"] for entry in refs.history(workspace, "counter")]
    assert values == list(range(1, num_writers * num_moves + 1))


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"target": {"kind": "x", "sha256": "short"}}', b"\xff"])
def test_a_damaged_entry_is_named(workspace: Workspace, data: bytes) -> None:
    refs.move(workspace, "champion", target(1), expected=None, reason="")
    workspace.publish("refs/champion/00000001.json", data)
    with pytest.raises(IntegrityError, match=r"refs/champion/00000001\.json: not a readable ref"):
        refs.current(workspace, "champion")


@pytest.mark.parametrize(("old", "new"), [(b'"n":3', b'"n":7'), (b"0001", b"0003"), (b"better", b"bedter")])
def test_a_flipped_bit_that_leaves_a_readable_entry_is_found_too(workspace: Workspace, old: bytes, new: bytes) -> None:
    refs.move(workspace, "champion", target(1), expected=None, reason="better", detail={"n": 3})
    data = workspace.read("refs/champion/00000001.json")
    assert data.count(old) == 1
    workspace.publish("refs/champion/00000001.json", data.replace(old, new))
    with pytest.raises(IntegrityError, match=r"00000001\.json: its content differs from the digest it carries"):
        refs.current(workspace, "champion")


def test_a_name_cannot_lead_out_of_the_refs(workspace: Workspace) -> None:
    with pytest.raises(IntegrityError, match="leaves the workspace"):
        refs.move(workspace, "../champion", target(1), expected=None, reason="")


def entry(number: int) -> str:
    return f"refs/champion/{number:08d}.json"


def sealed(value: dict[str, Any]) -> bytes:
    """An entry with these fields and the right digest, as who knows the format would forge it."""
    bare = {name: each for name, each in value.items() if name != "sha256"}
    return canonical_json({**bare, "sha256": sha256_of(bare)})


def forged(folder: Workspace, number: int, **changes: Any) -> bytes:
    return sealed({**json.loads(folder.read(entry(number))), **changes})


TAMPERING: dict[str, tuple[int, Callable[[Workspace], bytes]]] = {
    "a blank was added": (2, lambda w: w.read(entry(2)) + b" "),
    "a key stands twice": (2, lambda w: w.read(entry(2)).replace(b'"reason":', b'"reason":"x","reason":')),
    "an entry was replayed": (3, lambda w: w.read(entry(1))),
    "an entry of another ref": (2, lambda w: w.read("refs/other/00000002.json")),
    "one in the middle was forged": (2, lambda w: forged(w, 2, target=target(9).model_dump())),
    "the first was forged": (1, lambda w: forged(w, 1, reason="other")),
    "it follows nothing": (2, lambda w: forged(w, 2, prev="")),
    "its time is no time": (3, lambda w: forged(w, 3, unix_s=1e300)),
    "its number is infinite": (3, lambda w: w.read(entry(3)).replace(b'"number":3', b'"number":1e999')),
    "it is deep": (3, lambda _: b"[" * 100_000 + b"]" * 100_000),
    "it is deep, and whole": (3, lambda w: forged(w, 3, detail={"n": json.loads("[" * 200 + "]" * 200)})),
    "it is of a later format": (3, lambda w: forged(w, 3, format_version=3)),
}


@pytest.fixture
def moved(tmp_path: Path) -> Workspace:
    """A folder with three moves of two refs."""
    made = Workspace.create(str(tmp_path / "moved"))
    for name in ("champion", "other"):
        last = None
        for number in (1, 2, 3):
            last = refs.move(made, name, target(number), expected=last, reason="better")
    return made


@pytest.mark.parametrize("case", TAMPERING)
def test_an_entry_that_was_tampered_with_is_named_where_its_history_is_read(moved: Workspace, case: str) -> None:
    number, tampered = TAMPERING[case]
    moved.publish(entry(number), tampered(moved))
    for read in (refs.history, lambda *whose: list(refs.newest_first(*whose))):
        with pytest.raises(IntegrityError) as caught:
            read(moved, "champion")
        # Of one that was forged whole, the next tells: either may be the right one.
        assert caught.value.where in (entry(number), entry(number + 1))


def test_entries_that_changed_places_or_are_gone_from_the_middle_are_named(moved: Workspace) -> None:
    first, second = moved.read(entry(1)), moved.read(entry(2))
    moved.publish(entry(1), second)
    moved.publish(entry(2), first)
    with pytest.raises(IntegrityError, match="put in another's place"):
        refs.history(moved, "champion")
    moved.publish(entry(1), first)
    moved.remove(entry(2))
    with pytest.raises(IntegrityError, match="the file is gone"):
        refs.history(moved, "champion")


@pytest.mark.parametrize("what", ["pipe", "folder", "circle of links"])
def test_what_is_no_file_in_an_entrys_place_is_named_at_once(moved: Workspace, what: str) -> None:
    path = moved.local_path(entry(3))
    path.unlink()
    {"pipe": os.mkfifo, "folder": os.mkdir, "circle of links": lambda path: path.symlink_to(path.name)}[what](path)
    with pytest.raises(IntegrityError) as caught:
        refs.current(moved, "champion")
    assert caught.value.where.endswith(entry(3))


def test_a_move_after_an_entry_that_cannot_be_read_holds_also_once_that_is_put_back(moved: Workspace) -> None:
    third = moved.read(entry(3))
    moved.publish(entry(3), b"")
    assert refs.move(moved, "champion", target(4), expected=3, reason="decided anew").prev is None
    moved.publish(entry(3), third)
    assert len(refs.history(moved, "champion")) == 4
