"""Cleaning beside those at work, and over interruptions, takes nothing that anybody would miss."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.store.folder_store import FileEntry
from headway.data_contracts.store.leftovers import MACHINE, claimed, staging_name
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.tasks.core.lease_records import OWNERS
from headway.tasks.ownership.run_lease import leased_run
from headway.tasks.registry.file_lock import holding
from headway.tasks.retention import clean
from headway.tasks.retention.reachability import DAY_S
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base import run_lock
from headway.training.launch.base.fence import AttemptFence
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.conftest import make_context
from tests.tasks.past_work import Maker
from tests.tasks.retention.cleanings import cleaned, dangling, everything, look
from tests.training.attempts import begin
from tests.waiting import wait_until


def test_a_run_that_goes_on_stays_however_old_it_is_and_an_abandoned_one_goes(workspace: Workspace) -> None:
    maker = Maker(workspace)
    alive, abandoned = (maker.run(number, maker.data(number), finished=False) for number in (1, 2))
    with run_lock.owning(workspace.local_path(run_folder(alive.run))):
        cleaned(workspace)
    assert workspace.names(f"{run_folder(alive.run)}/checkpoints") != []
    assert workspace.exists(document_path(alive.run))
    assert dangling(workspace) == set()
    assert not workspace.local_path(run_folder(abandoned.run)).exists()
    assert not workspace.exists(document_path(abandoned.run))


@pytest.mark.long
def test_the_claims_of_a_run_that_another_machine_has_stay_with_all_of_it_and_go_when_it_is_over(
    new_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Workspace.create(f"s3://{new_bucket()}/team")
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "this machine"))
    here = Workspace(there.uri)
    maker = Maker(here)
    data = maker.data(1)
    made = maker.run(1, data)
    needed = made.files + maker.register(made, maker.evaluate(made, data), 1)
    claims = f"{OWNERS}/{made.run.sha256[:16]}"
    with leased_run(make_context(there, tmp_path / "flow"), made.run, LaunchSpec()) as lease:
        wait_until(lambda: "00000001.beat" in here.names(claims))
        assert not {path for path in cleaned(here) if path.startswith((run_folder(made.run), OWNERS))}
        lease.require()
    assert {f"{claims}/00000001.{name}" for name in ("json", "beat", "over")} <= cleaned(here)
    assert set(needed) <= everything(here)


def test_a_run_that_goes_on_again_while_its_old_files_go_keeps_its_mandate(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(workspace)
    made = maker.run(1, maker.data(1), finished=False)
    folder, real = workspace.local_path(run_folder(made.run)), clean._remove_empty_folders
    started: list[AttemptFence] = []

    def remove_of_a_run_resumed(root: Path, gone: list[FileEntry]) -> None:
        assert any(file.path.startswith(f"{run_folder(made.run)}/") for file in gone)
        with run_lock.owning(folder):
            started.append(begin(folder, 2))
            real(root, gone)

    monkeypatch.setattr(clean, "_remove_empty_folders", remove_of_a_run_resumed)
    cleaned(workspace)
    started[0].require()


def test_what_a_flow_at_work_could_have_found_stays(workspace: Workspace) -> None:
    made = Maker(workspace).run(1, Maker(workspace).data(1))
    session = workspace.local_path(f"sessions/{MACHINE}-1")
    session.parent.mkdir()
    with claimed(session):
        os.utime(session, (0, 0))
        assert cleaned(workspace) == set()
    assert set(made.files) <= cleaned(workspace)


@pytest.mark.parametrize("kind", ["stage", "group", "document"])
def test_what_a_flow_finds_again_between_two_looks_stays_with_all_that_it_names(
    workspace: Workspace, kind: str
) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    key = sha256_of(["group", 1])
    found = clean.plan(workspace, older_than_s=DAY_S, keep_last=0, now_unix_s=time.time() + 2 * DAY_S)
    paths = {
        "stage": stages.record_path("shard", stages.stage_key("shard", {"data": 1})),
        "group": f"shards/{key}/group.json",
        "document": document_path(manifest),
    }
    assert paths[kind] in found.live_set.order
    for path in workspace.local_root.rglob("*"):
        os.utime(path, (0, 0))
    if kind == "document":
        assert workspace.publish_document(workspace.load(manifest, ShardManifest)) == manifest
    else:
        assert workspace.renew(paths[kind])
    later = workspace.local_path(paths[kind]).stat().st_mtime
    assert later > 0
    future = later + 3 * DAY_S
    os.utime(workspace.local_path(paths[kind]), (future, future))  # the cleaning's clock is ahead by two days
    clean.sweep(workspace, found, settle_s=0)
    assert workspace.exists(f"shards/{key}/00000.parquet")
    assert workspace.exists(paths[kind])
    assert {name for who, name in dangling(workspace) if who == paths[kind]} == set()


def test_an_interrupted_cleaning_leaves_no_name_of_what_is_gone_and_the_next_completes_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    kept, lost = maker.run(1, manifest), maker.run(2, maker.data(2), start=None)
    maker.register(kept, maker.evaluate(kept, manifest), 1)
    maker.evaluate(lost, maker.data(2))
    total = len(look(workspace).files)
    removed = 0
    remove = Workspace.remove

    def one_then_killed(self: Workspace, relative: str) -> None:
        nonlocal removed
        removed += 1
        if removed % 4 == 0:
            raise KeyboardInterrupt
        remove(self, relative)

    monkeypatch.setattr(Workspace, "remove", one_then_killed)
    for _ in range(2 * total):
        with contextlib.suppress(KeyboardInterrupt):
            if not cleaned(workspace):
                break
        assert dangling(workspace) == set()
    monkeypatch.undo()
    assert cleaned(workspace) == set() and look(workspace).files == []


def test_unfinished_files_go_unless_somebody_writes_them(workspace: Workspace) -> None:
    Maker(workspace).data(1)
    key = sha256_of(["group", 1])
    dead, alive = (workspace.local_path(f"shards/{key}/{staging_name('00001.parquet')}") for _ in range(2))
    dead.write_bytes(b"half")
    with claimed(alive):
        cleaned(workspace)
        assert alive.exists() and not dead.exists()


def test_two_cleanings_do_not_run_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "OTHER_CLEANING_WITHIN_S", 0.1)
    Maker(workspace).data(1)
    with holding(workspace.local_path("locks/clean.lock")), pytest.raises(RegistryError):
        cleaned(workspace)
