from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.training.data.shards.group_store import GroupRecord, UncachedDigests, record_path
from headway.training.data.shards.group_store import find_group as find_with

NOBODY = 65534


def find_group(workspace: Workspace, key: str) -> GroupRecord | None:
    return find_with(workspace, key, UncachedDigests())


def keys(built: Any) -> list[str]:
    return sorted(path.parent.name for path in Path(built.workspace.root).glob("shards/*/group.json"))


def test_a_finished_group_is_found_by_its_key(shared: Any) -> None:
    found = [find_group(shared.workspace, key) for key in keys(shared)]
    assert all(found)
    assert {part.group.model_dump_json() for record in found if record for part in record.parts} == {
        group.model_dump_json() for group in shared.manifest.groups
    }


def test_an_unknown_key_finds_nothing(shared: Any) -> None:
    assert find_group(shared.workspace, "f" * 64) is None


def test_no_flipped_bit_of_a_record_is_believed(built: Any) -> None:
    key = keys(built)[0]
    path = built.workspace.local_path(record_path(key))
    good = path.read_bytes()
    for position in range(0, len(good), 37):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        assert find_group(built.workspace, key) is None, position
    path.write_bytes(good)
    assert find_group(built.workspace, key)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"record": {}, "sha256": ""}', "null"])
def test_a_record_of_another_shape_is_not_believed(built: Any, text: str) -> None:
    key = keys(built)[0]
    built.workspace.local_path(record_path(key)).write_text(text)
    assert find_group(built.workspace, key) is None


def test_a_record_moved_under_another_key_is_not_believed(built: Any) -> None:
    one, two = keys(built)[:2]
    held = built.workspace.read(record_path(one))
    assert json.loads(held)["record"]["key"] == one
    built.workspace.publish(record_path(two), held)
    assert find_group(built.workspace, two) is None


def test_a_store_that_refuses_is_told_and_not_taken_for_a_missing_group(store: Any, tmp_path: Path) -> None:
    record = tmp_path / record_path("e" * 64)
    record.parent.mkdir(parents=True)
    record.write_bytes(b"{}")
    workspace = Workspace(f"{store.PROTOCOL}://{tmp_path}")
    store.FaultyFileSystem.faults.append(store.raising(PermissionError(13, "denied")))
    with pytest.raises(EnvironmentProblem, match=r"may not do it .*get, put, list and delete"):
        find_group(workspace, "e" * 64)
    assert find_group(workspace, "e" * 64) is None


def test_a_record_that_cannot_be_read_is_told_and_not_taken_for_missing() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # whose parents everybody may enter
        workspace = Workspace.create(folder)
        record = workspace.local_path(record_path("e" * 64))
        record.parent.mkdir(parents=True)
        record.touch(0o600)
        Path(folder).chmod(0o755)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(EnvironmentProblem, match=r"group.json: cannot be read \(Permission denied\).*owner"):
                find_group(workspace, "e" * 64)
        finally:
            os.seteuid(0)
        assert find_group(workspace, "e" * 64) is None
