"""A ref moves by compare-and-set: no update is lost, and its history stays."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from pathlib import Path

import pytest

from data_contracts import refs
from data_contracts.documents import Link
from data_contracts.errors import IntegrityError, RefConflict
from data_contracts.publication import Workspace


@pytest.fixture(params=["folder", "memory", "s3"])
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
