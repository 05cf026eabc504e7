"""Bits that rot change no time stamp: what a rank finds damaged, the next run hashes again and makes anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.digests import canonical_json, sha256_file, stat_identity
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import DataError, IntegrityError

pytestmark = pytest.mark.long


def rot(project, path: Path, damage: Callable[[Path], object]) -> None:
    """Damage a file behind the stat identity that the flow remembers it by."""
    sha256 = sha256_file(path)
    damage(path)
    remembered = project.workspace / "digest-cache.json"
    value = json.loads(remembered.read_bytes()) if remembered.exists() else {"format_version": 1, "entries": {}}
    value["entries"][str(path)] = [stat_identity(path.stat()), sha256]
    remembered.write_bytes(canonical_json(value))


def test_a_shard_that_a_rank_found_rotten_is_made_again_by_the_next_run(project, train_here, flip_one_bit) -> None:
    manifest = ShardManifest.from_bytes(project.file("documents/manifest/*.json").read_bytes(), where="")
    group = next(group for group in manifest.groups if group.split == "train")
    shard: Path = project.workspace / group.shards[0].file.path
    good = shard.read_bytes()
    project.forget_training()
    rot(project, shard, flip_one_bit)
    with pytest.raises(IntegrityError, match=shard.name):
        train_here(project)
    assert shard.read_bytes() != good, "the stage believed what it remembered"
    events = train_here(project)
    (damage,) = (event for event in events if event["event"] == "stage.damaged")
    assert shard.name in damage["message"]
    assert shard.read_bytes() == good
    assert project.result()["step"] == 120


def test_a_source_file_that_rotted_is_noticed_by_the_run_after(project, train_here, flip_one_bit) -> None:
    project.forget_training()
    path: Path = project.root / "texts" / "part1" / "text07.txt"
    good = path.read_bytes()
    rot(project, path, lambda path: path.write_bytes(good.replace(b" b then", b" c then")))
    for left in ("shards", "stages/shard"):
        shutil.rmtree(project.workspace / left)
    with pytest.raises(DataError, match=r"text07\.txt"):
        train_here(project)
    events = train_here(project)
    assert {event["found"] for event in events if event["event"] == "stage.snapshot" and "found" in event} == {False}
