"""A reader of a workspace sees a whole file or none, and no path leads out of it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import HASHERS, Algorithm, sha256_bytes
from headway.data_contracts.store.documents import ContractReceipt, Link, Snapshot, SourceFile, StoredFile
from headway.data_contracts.store.errors import ConfigError, DataError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.leftovers import staging_name
from headway.data_contracts.store.object_store import ObjectStore
from headway.data_contracts.store.places import confined
from headway.data_contracts.store.publication import Sync, Workspace
from headway.data_contracts.store.published_files import canonical_uri, document_path
from headway.data_contracts.tables.digest_cache import DigestCache

SNAPSHOT = Snapshot(
    format="text-files",
    columns={"path": "string"},
    num_rows=1,
    files=(SourceFile(path="a.py", size_bytes=3, sha256="ab" * 32),),
)


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.process)])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    places = {
        "folder": lambda: str(tmp_path / "workspace"),
        "memory": lambda: f"memory://{uuid.uuid4().hex}",
        "s3": lambda: f"s3://{request.getfixturevalue('new_bucket')()}/team/prefix",
    }
    return Workspace.create(places[request.param]())


@pytest.fixture
def folder(tmp_path: Path) -> Workspace:
    return Workspace.create(str(tmp_path / "workspace"))


def leftovers(workspace: Workspace) -> list[str]:
    return [path.name for path in Path(workspace.root).rglob("*") if ".partial" in path.name]


def test_what_is_published_is_read_back(workspace: Workspace) -> None:
    stored = workspace.publish("a/b.bin", b"bytes")
    assert (stored.path, stored.size_bytes, stored.sha256) == ("a/b.bin", 5, sha256_bytes(b"bytes"))
    assert workspace.read("a/b.bin") == b"bytes"
    assert workspace.names("a") == ["b.bin"]
    workspace.verify(stored)


def test_a_workspace_is_empty_until_something_is_published(workspace: Workspace) -> None:
    assert workspace.is_empty()
    assert list(workspace.local_root.rglob("*")) == []
    workspace.publish("a", b"bytes")
    assert not workspace.is_empty()


def test_publishing_again_replaces(workspace: Workspace) -> None:
    workspace.publish("a", b"old")
    workspace.publish("a", b"new")
    assert workspace.read("a") == b"new"


def test_an_exclusive_publish_of_a_taken_name_changes_nothing(workspace: Workspace) -> None:
    workspace.publish("a", b"first", exclusive=True)
    with pytest.raises(FileExistsError):
        workspace.publish("a", b"second", exclusive=True)
    assert workspace.read("a") == b"first"


def test_of_many_exclusive_publishers_one_wins_and_its_bytes_stay(folder: Workspace) -> None:
    for round_number in range(20):
        name, start = f"race-{round_number}", threading.Barrier(8)

        def publish(writer: int, name: str = name, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                folder.publish(name, b"%d" % writer * 1000, exclusive=True)
            except FileExistsError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(publish, range(8)))
        assert won.count(True) == 1
        assert folder.read(name) == b"%d" % won.index(True) * 1000
    assert leftovers(folder) == []


def test_a_reader_never_sees_half_a_file(folder: Workspace) -> None:
    versions = [bytes([number]) * 200_000 for number in range(4)]
    folder.publish("a", versions[0])
    done = threading.Event()

    def keep_publishing() -> None:
        for number in range(60):
            folder.publish("a", versions[number % 4])
        done.set()

    writer = threading.Thread(target=keep_publishing)
    writer.start()
    while not done.is_set():
        assert folder.read("a") in versions
    writer.join()


def test_a_file_is_copied_in_with_its_digest(workspace: Workspace, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3 << 20))
    stored = workspace.publish_file(local, "files/a")
    assert stored.sha256 == sha256_bytes(local.read_bytes())
    workspace.verify(stored)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("sync", "made_durable"),
    [("file and name", [("bytes", False), ("name", True)]), ("file", [("bytes", False)]), ("nothing", [])],
)
def test_bytes_are_durable_before_they_have_a_name_and_the_name_before_anybody_hears_of_it(
    folder: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    sync: Sync,
    made_durable: list[tuple[str, bool]],
    exclusive: bool,
) -> None:
    final, real, seen = folder.local_path("a/b"), os.fsync, []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        is_name = os.path.samestat(status, final.parent.stat())
        assert is_name or status.st_size == len(b"bytes")
        seen.append(("name" if is_name else "bytes", final.exists()))
        real(descriptor)

    final.parent.mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    folder.publish("a/b", b"bytes", exclusive=exclusive, sync=sync)
    assert seen == made_durable


def test_the_names_of_folders_that_a_file_needs_are_durable_before_anybody_hears_of_it(
    folder: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, real, seen = folder.local_path("a/b/c"), os.fsync, []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        places = [place for place in (folder.local_root, *final.parents[:2]) if place.exists()]
        seen.extend((place, final.exists()) for place in places if os.path.samestat(status, place.stat()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder.publish("a/b/c", b"bytes")
    assert seen == [(final.parent, True), (final.parents[1], True), (folder.local_root, True)]


def test_a_file_that_changes_on_its_way_up_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, local, real = Workspace.create(f"memory://{uuid.uuid4().hex}"), tmp_path / "local", ObjectStore.put_file

    def put_file(store: ObjectStore, relative: str, path: Path, *, exclusive: bool) -> None:
        local.write_bytes(b"longer than before")
        real(store, relative, path, exclusive=exclusive)

    local.write_bytes(b"before")
    monkeypatch.setattr(ObjectStore, "put_file", put_file)
    with pytest.raises(DataError, match="changed while it was published"):
        workspace.publish_file(local, "files/a")


def test_a_tree_goes_up_without_what_was_left_half_written() -> None:
    workspace = Workspace.create(f"memory://{uuid.uuid4().hex}")
    folder = workspace.local_path("ledger/run")
    (folder / "deeper").mkdir(parents=True)
    for name in ("1.jsonl", "deeper/2.jsonl", staging_name("3.jsonl")):
        (folder / name).write_bytes(name.encode())
    published = workspace.publish_tree("ledger/run")
    assert [file.path for file in published] == ["ledger/run/1.jsonl", "ledger/run/deeper/2.jsonl"]
    assert [workspace.read(file.path) for file in published] == [b"1.jsonl", b"deeper/2.jsonl"]
    assert workspace.names("ledger/run") == ["1.jsonl", "deeper"]


def test_what_is_gone_is_removed_and_cannot_be_renewed(workspace: Workspace) -> None:
    workspace.publish("a", b"bytes")
    assert workspace.renew("a")
    workspace.remove("a")
    workspace.remove("a")
    assert not workspace.exists("a")
    assert not workspace.renew("a")


def failing(error_number: int) -> Callable[..., Any]:
    def write_half(path: Path, data: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(data[: len(data) // 2])
        raise OSError(error_number, os.strerror(error_number))

    return write_half


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("what", ["file", "fifo", "dangling link"])
def test_what_lies_where_a_folder_belongs_is_said_and_is_no_lost_race(
    folder: Workspace, what: str, exclusive: bool
) -> None:
    place = folder.local_path("a")
    match what:
        case "file":
            place.write_bytes(b"x")
        case "fifo":
            os.mkfifo(place)
        case _:
            place.symlink_to("nowhere")
    with pytest.raises(EnvironmentProblem, match="writing is refused") as caught:
        folder.publish("a/b", b"x", exclusive=exclusive)
    assert "that path" in caught.value.advice


def test_a_folder_where_a_file_belongs_is_said(folder: Workspace) -> None:
    folder.local_path("a").mkdir()
    with pytest.raises(EnvironmentProblem, match="Is a directory"):
        folder.publish("a", b"x")


@pytest.mark.parametrize(
    ("error_number", "message"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "writing is refused"),
        (errno.EACCES, "writing is refused"),
    ],
)
def test_a_write_that_fails_midway_publishes_nothing_and_keeps_what_was(
    folder: Workspace, monkeypatch: pytest.MonkeyPatch, error_number: int, message: str
) -> None:
    folder.publish("a", b"what was good before")
    monkeypatch.setattr(Path, "write_bytes", failing(error_number))
    for name in ("a", "new"):
        with pytest.raises(EnvironmentProblem, match=message) as caught:
            folder.publish(name, b"x" * 100)
        assert caught.value.where == str(folder.local_path(name)), "which disk it is"
        assert "nothing was published" in caught.value.what
    assert folder.read("a") == b"what was good before"
    assert not folder.exists("new")
    assert leftovers(folder) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_device_is_reported_as_one(folder: Workspace) -> None:
    with pytest.raises(EnvironmentProblem, match="no space left"), folder.staged("a") as staging:
        staging.unlink()
        staging.symlink_to("/dev/full")
        staging.write_bytes(b"x" * 100)
    assert not folder.exists("a")


def test_an_error_in_the_middle_of_staging_publishes_nothing(folder: Workspace) -> None:
    with pytest.raises(ZeroDivisionError), folder.staged("a/b") as staging:
        staging.write_bytes(b"half")
        raise ZeroDivisionError
    assert folder.names("a") == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that refuses root too")
def test_a_workspace_that_cannot_be_written_is_refused_at_once() -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot be written .* --workspace"):
        Workspace.create("/proc/headway")


def test_a_workspace_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="Not a directory"):
        Workspace.create(str(tmp_path / "file"))


def test_a_document_is_named_by_its_bytes_and_published_once(workspace: Workspace) -> None:
    link = workspace.publish_document(SNAPSHOT)
    assert workspace.publish_document(SNAPSHOT) == link
    assert workspace.names("documents/snapshot") == [f"{SNAPSHOT.sha256}.json"]
    assert workspace.load(link, Snapshot) == SNAPSHOT


@pytest.mark.parametrize("bit", [0, 7, 100, 1000])
def test_a_flipped_bit_in_a_document_is_found_and_the_file_named(workspace: Workspace, bit: int) -> None:
    link = workspace.publish_document(SNAPSHOT)
    data = bytearray(SNAPSHOT.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    workspace.publish(document_path(link), bytes(data))
    with pytest.raises(IntegrityError, match=SNAPSHOT.sha256):
        workspace.load(link, Snapshot)


def test_a_flipped_bit_that_leaves_a_valid_document_is_found_too(workspace: Workspace) -> None:
    link = workspace.publish_document(SNAPSHOT)
    altered = SNAPSHOT.to_bytes().replace(b'"size_bytes":3', b'"size_bytes":7')  # 3 and 7 differ in one bit
    workspace.publish(document_path(link), altered)
    assert Snapshot.from_bytes(altered, where="") != SNAPSHOT
    with pytest.raises(IntegrityError, match=f"{SNAPSHOT.sha256}.json: its bytes differ"):
        workspace.load(link, Snapshot)


def test_publishing_a_document_heals_a_damaged_copy_and_leaves_a_good_one_alone(folder: Workspace) -> None:
    path = folder.local_path(document_path(folder.publish_document(SNAPSHOT)))
    before = path.stat()
    folder.publish_document(SNAPSHOT)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    path.write_bytes(SNAPSHOT.to_bytes().replace(b'"size_bytes":3', b'"size_bytes":7'))
    assert folder.load(folder.publish_document(SNAPSHOT), Snapshot) == SNAPSHOT


def test_a_document_that_is_gone_is_named(workspace: Workspace) -> None:
    with pytest.raises(IntegrityError, match=f"{SNAPSHOT.sha256}.json: the file is gone"):
        workspace.load(SNAPSHOT.link, Snapshot)


def test_a_document_of_another_kind_is_refused(workspace: Workspace) -> None:
    link = workspace.publish_document(SNAPSHOT)
    with pytest.raises(IntegrityError, match="is a snapshot, not a receipt"):
        workspace.load(link, ContractReceipt)


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_a_stored_file_that_was_altered_or_lost_is_named_by_every_way_to_it(
    workspace: Workspace, tmp_path: Path, algorithm: Algorithm
) -> None:
    hasher = HASHERS[algorithm]()
    hasher.update(b"bytes")
    stored = StoredFile(path="data/a", size_bytes=5, **{algorithm: hasher.hexdigest()})
    known = DigestCache(tmp_path / "known")
    ways: dict[str, Callable[[], object]] = {
        "verify": lambda: workspace.verify(stored),
        "fetch": lambda: workspace.fetch(stored),
        "copy out": lambda: workspace.copy_out(stored, tmp_path / "copy"),
        "check": lambda: stages.check_file(workspace, stored, known),
    }
    workspace.publish("data/a", b"bytes")
    workspace.local_path("data").mkdir(parents=True, exist_ok=True)
    workspace.local_path("data/a").write_bytes(b"bytes")
    for way in ways.values():
        way()
    assert (tmp_path / "copy").read_bytes() == b"bytes"
    workspace.publish("data/a", b"bytez")
    (tmp_path / "copy").write_bytes(b"bytez")
    shutil.rmtree(workspace.local_root / "copies", ignore_errors=True)
    for way in ways.values():
        with pytest.raises(IntegrityError, match=f"data/a: {algorithm} is"):
            way()
    workspace.fs.rm_file(workspace.path("data/a"))
    for way in ways.values():
        with pytest.raises(IntegrityError, match="data/a: the file is gone"):
            way()


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_a_file_goes_up_from_its_own_place_only_as_its_document_says(
    request: pytest.FixtureRequest, algorithm: Algorithm
) -> None:
    workspace = Workspace.create(f"s3://{request.getfixturevalue('new_bucket')()}/team")
    hasher = HASHERS[algorithm]()
    hasher.update(b"bytes")
    stored = StoredFile(path="data/a", size_bytes=5, **{algorithm: hasher.hexdigest()})
    here = workspace.local_path(stored.path)
    here.parent.mkdir(parents=True)
    here.write_bytes(b"bytes")
    workspace.publish_expected(stored)
    workspace.verify(stored)
    here.write_bytes(b"bytez")
    with pytest.raises(IntegrityError, match=f"data/a: {algorithm} is"):
        workspace.publish_expected(stored)


@given(st.text("./\\\0ab", max_size=12))
@example("../a")
@example("a/../../b")
@example("/etc/passwd")
@example("a//b")
@example("")
def test_a_confined_path_never_leaves_its_folder(relative: str) -> None:
    try:
        path = confined(relative)
    except IntegrityError:
        return
    resolved = Path(os.path.normpath(Path("/workspace") / path))
    assert resolved.is_relative_to("/workspace")
    assert resolved != Path("/workspace")
    assert str(resolved) == f"/workspace/{path}"


@given(st.lists(st.text("ab.é -", min_size=1, max_size=4).filter(lambda part: part not in (".", "..")), min_size=1))
def test_an_honest_path_is_left_as_it_is(parts: list[str]) -> None:
    assert confined("/".join(parts)) == "/".join(parts)


def test_a_link_that_leads_out_of_the_workspace_is_refused(folder: Workspace, tmp_path: Path) -> None:
    (Path(folder.root) / "out").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="leads out of the workspace"):
        folder.publish("out/a", b"bytes")
    assert not (tmp_path / "a").exists()
    (tmp_path / "secret").write_bytes(b"bytes")
    with pytest.raises(IntegrityError, match=r"leads out of the workspace\. Move aside what lies there"):
        folder.read("out/secret")


def test_what_lies_in_the_place_of_a_file_is_named_with_what_to_do(folder: Workspace) -> None:
    os.mkfifo(Path(folder.root) / "pipe")
    (Path(folder.root) / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(IntegrityError, match=rf"^{name}: is a {name}, not a file\. Move aside what lies there"):
            folder.read(name)


def test_a_link_with_a_forged_digest_never_becomes_a_path() -> None:
    with pytest.raises(ValueError, match="sha256"):
        Link(kind="snapshot", sha256="../../etc/passwd")


def test_a_new_workspace_is_its_users_alone_and_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    before = os.umask(0)
    try:
        Workspace.create(str(tmp_path / "above" / "new"))
        Workspace.create(str(shared))
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "above" / "new", tmp_path / "above", shared)]
    assert modes == [0o700, 0o777, 0o770]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/team", "https://host.example/team", "FTP://host.example/team"])
def test_a_place_that_takes_no_objects_is_no_workspace_and_is_not_asked(uri: str) -> None:
    started_s = time.monotonic()
    for use in (Workspace, Workspace.create, Workspace.existing, canonical_uri):
        with pytest.raises(ConfigError, match=r"is neither.*s3://bucket/prefix"):
            use(uri)
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("first", [Workspace, Workspace.create])
def test_the_local_side_of_a_remote_workspace_is_its_users_alone_whoever_opens_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Callable[[str], Workspace]
) -> None:
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "local"))
    workspace = first(f"memory://{uuid.uuid4().hex}")
    copy = workspace.fetch(workspace.publish("models/weights", b"secret"))
    assert copy.is_relative_to(workspace.local_root)
    assert workspace.local_root.stat().st_mode & 0o077 == 0


def test_a_file_with_a_hole_of_terabytes_is_not_read_into_memory(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.publish("cards/x.md", b"")
    os.truncate(workspace.local_path("cards/x.md"), 1 << 43)
    with pytest.raises(IntegrityError, match="is longer than"):
        workspace.read_if_there("cards/x.md")
    assert workspace.publish_addressed("cards/x.md", b"text").size_bytes == 4
    assert workspace.read("cards/x.md") == b"text"
