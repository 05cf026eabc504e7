"""Whole objects or none, one winner, and bounded patience, over a line that breaks in every way it can."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.data_contracts.store import object_store, refs
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Link, Snapshot
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError, RefConflict
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from tests.warm_programs import Program

HASTY = Patience(deadline_s=1.5, attempt_s=1.0, first_wait_s=0.02, longest_wait_s=0.1)
STEADY = Patience(deadline_s=60.0, attempt_s=1.0, first_wait_s=0.02, longest_wait_s=0.1)
HOME = Path(__file__).resolve().parents[3]
LARGE_BYTES = 2 * object_store.PART_BYTES + (5 << 20)
SNAPSHOT = Snapshot(format="text-files", columns={"path": "string"}, num_rows=0, files=())


@pytest.fixture
def workspace(line) -> Workspace:
    return Workspace.create(f"s3://{line.bucket}/prefix", STEADY)


def impatient(line) -> Workspace:
    return Workspace(f"s3://{line.bucket}/prefix", HASTY)


def write_large(path: Path, *, seed: int) -> Path:
    block = bytes((seed + number) % 251 for number in range(1 << 16))
    with path.open("wb") as stream:
        while stream.tell() < LARGE_BYTES:
            stream.write(block)
        stream.truncate(LARGE_BYTES)
    return path


def put_by_another_program(line, key: str, data: bytes = b"{}") -> None:
    """As any S3 client may: below the workspace's prefix, under a name that fsspec would not write."""
    connection = http.client.HTTPConnection("127.0.0.1", line.port, timeout=60)
    connection.request("PUT", f"/{line.bucket}/prefix/{urllib.parse.quote(key)}", data)
    assert connection.getresponse().status == 200
    connection.close()


# What is visible


def test_a_body_that_raises_publishes_nothing(workspace: Workspace) -> None:
    with pytest.raises(ZeroDivisionError), workspace.staged("a/b") as staging:
        staging.write_bytes(b"half of it")
        raise ZeroDivisionError
    assert workspace.names("a") == []
    assert list(workspace.local_path("a").iterdir()) == []


@pytest.mark.parametrize("fault", ["cut", "500", "503", "reset", "409", "lose"])
def test_a_put_that_fails_on_the_way_is_tried_again_and_the_object_is_whole(workspace, line, fault: str) -> None:
    data = os.urandom(200_000)
    line.break_((fault, "PUT", "shard", 3))
    stored = workspace.publish("shard", data)
    assert [fault for method, _, fault in line.log() if method == "PUT"] == [fault] * 3 + [""]
    assert workspace.read("shard") == data
    workspace.verify(stored)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["cut", "500", "hold"])
def test_an_upload_that_never_gets_through_leaves_nothing_and_what_was_there_stays(workspace, line, fault: str) -> None:
    workspace.publish("old", b"what was good before")
    workspace = impatient(line)
    line.break_((fault, "PUT", "", 10_000))
    for name in ("old", "new"):
        with pytest.raises(EnvironmentProblem, match=f"{name}: writing failed .* times"):
            workspace.publish(name, os.urandom(100_000))
    line.break_()
    assert workspace.read("old") == b"what was good before"
    assert not workspace.exists("new")
    assert [name for name in workspace.fs.find(workspace.root) if not name.endswith("/old")] == []


WRITER = """
import sys
from pathlib import Path
from headway.data_contracts.store.publication import Workspace
Workspace(sys.argv[1]).publish_file(Path(sys.argv[2]), "large")
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("held", ["uploads", "partNumber=2"])
def test_a_writer_killed_in_mid_upload_leaves_nothing_under_the_name(
    workspace, line, tmp_path: Path, wait_until: Callable[..., object], held: str
) -> None:
    local = write_large(tmp_path / "large", seed=1)
    line.break_(("hold", "", held, 10_000))
    writer = Program([sys.executable, "-c", WRITER, workspace.uri, local], cwd=HOME)
    try:
        wait_until(lambda: any(fault == "hold" for _, _, fault in line.log()))
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert writer.returncode == -signal.SIGKILL
    line.break_()
    assert not workspace.exists("large")
    stored = workspace.publish_file(local, "large")
    workspace.verify(stored)


def test_a_large_file_goes_up_in_parts_over_a_bad_line_and_comes_back_whole(workspace, line, tmp_path: Path) -> None:
    local = write_large(tmp_path / "large", seed=2)
    line.break_(("500", "PUT", "partNumber=2", 1), ("cut", "PUT", "partNumber=1", 1), ("503", "POST", "uploadId", 1))
    stored = workspace.publish_file(local, "large")
    assert {fault for *_, fault in line.log()} == {"", "500", "cut", "503"}
    line.break_(("cut-answer", "GET", "large", 2), ("reset", "GET", "large", 1))
    assert workspace.fetch(stored).read_bytes() == local.read_bytes()
    assert [fault for *_, fault in line.log()].count("cut-answer") == 2


# Conditions


@pytest.mark.parametrize("large", [False, True])
def test_a_lost_answer_to_an_exclusive_put_is_known_for_our_own_success(workspace, line, tmp_path, large: bool) -> None:
    line.break_(("lose", "POST" if large else "PUT", "uploadId" if large else "entry", 1))
    if large:
        local = write_large(tmp_path / "large", seed=3)
        with workspace.staged("entry", exclusive=True) as staging:
            staging.write_bytes(local.read_bytes())
    else:
        workspace.publish("entry", b"ours", exclusive=True)
    assert "lose" in [fault for *_, fault in line.log()]
    with pytest.raises(FileExistsError):
        workspace.publish("entry", b"theirs", exclusive=True)


def test_a_put_lost_to_another_writer_is_a_lost_race_even_over_a_lost_answer(workspace, line) -> None:
    workspace.publish("entry", b"theirs", exclusive=True)
    line.break_(("500", "PUT", "entry", 1), ("lose", "PUT", "entry", 1))
    with pytest.raises(FileExistsError):
        workspace.publish("entry", b"ours", exclusive=True)
    assert workspace.read("entry") == b"theirs"


def test_a_ref_moves_over_lost_answers_without_losing_an_entry(workspace, line) -> None:
    entry = None
    for number in range(5):
        line.break_(("lose", "PUT", "refs", 1))
        target = Link(kind="registration", sha256=f"{number:064x}")
        entry = refs.move(workspace, "champion", target, expected=entry, reason="")
    assert [each.number for each in refs.history(workspace, "champion")] == [1, 2, 3, 4, 5]


def test_equal_moves_of_two_writers_in_one_moment_are_two_moves(workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refs, "time", SimpleNamespace(time=lambda: 1.0))
    target = Link(kind="registration", sha256="ab" * 32)
    refs.move(workspace, "champion", target, expected=None, reason="same")
    with pytest.raises(RefConflict):
        refs.move(workspace, "champion", target, expected=None, reason="same")


def test_a_listing_that_lags_hides_no_entry(workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = None
    for number in range(3):
        entry = refs.move(workspace, "r", Link(kind="k", sha256=f"{number:064x}"), expected=entry, reason="")
    for seen in ([], ["00000001.json"], ["00000001.json", "stray.json", "00000002.json"]):
        monkeypatch.setattr(workspace, "names", lambda _relative, seen=seen: seen)
        assert refs.current(workspace, "r") == entry


RACER = """
import sys
from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
workspace, rounds, own = Workspace(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
won = 0
for number in range(rounds):
    sys.stdin.readline()
    try:
        expected = refs.read_entry(workspace, "race", number) if number else None
        refs.move(workspace, "race", Link(kind="registration", sha256=own * 64), expected=expected, reason=own)
        print("won", flush=True)
    except RefConflict:
        print("lost", flush=True)
"""


@pytest.mark.long
@pytest.mark.process
def test_of_processes_that_race_for_a_ref_one_wins_each_round(workspace: Workspace) -> None:
    rounds, names = 40, ("a", "b", "c")
    racers = [
        Program(
            [sys.executable, "-c", RACER, workspace.uri, rounds, name],
            cwd=HOME,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in names
    ]
    winners = []
    try:
        for _ in range(rounds):
            for racer in racers:
                racer.stdin.write("go\n")
                racer.stdin.flush()
            told = [racer.stdout.readline().strip() for racer in racers]
            assert sorted(told) == ["lost", "lost", "won"]
            winners.append(names[told.index("won")])
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert [entry.reason for entry in refs.history(workspace, "race")] == winners


# Patience


@pytest.mark.parametrize("fault", ["500", "503", "reset", "slow", "cut-answer"])
def test_a_read_that_fails_for_a_while_is_tried_again(workspace, line, fault: str) -> None:
    stored = workspace.publish("a", b"x" * 1000)
    line.break_((fault, "GET", "/a", 2))
    assert workspace.read("a") == b"x" * 1000
    workspace.verify(stored)
    assert [fault for *_, fault in line.log()].count(fault) == 2


@pytest.mark.parametrize("fault", ["500", "503", "reset", "slow"])
def test_a_store_that_stays_bad_is_given_up_by_name_within_the_deadline(workspace, line, fault: str) -> None:
    workspace.publish("some/object", b"x" * 1000)
    workspace = impatient(line)
    line.break_((fault, "GET", "some/object", 10_000))
    started = time.monotonic()
    with pytest.raises(EnvironmentProblem) as caught:
        workspace.read("some/object")
    waited_s = time.monotonic() - started
    assert caught.value.exit_code == 8
    assert caught.value.where == f"s3://{line.bucket}/prefix/some/object"
    assert "failed" in caught.value.what
    assert "Run again" in caught.value.advice and line.url in caught.value.advice
    assert waited_s < STEADY.deadline_s, "far from for ever"


def test_a_command_gives_up_sooner_on_a_store_that_has_never_answered_it(line, monkeypatch, caplog) -> None:
    uri = f"s3://{line.bucket}/prefix"
    Workspace.create(uri).publish_document(SNAPSHOT)
    answers = object_store._Answers()
    monkeypatch.setattr(object_store, "answers", answers)
    monkeypatch.setattr(object_store, "FIRST_ANSWER_WITHIN_S", 0.5)
    answers.person_waits = True
    line.break_(("503", "", "", 10_000))
    with pytest.raises(EnvironmentProblem, match=r"failed \d+ times in [01] s"):
        Workspace.existing(uri)
    assert not caplog.messages, "one line is enough"
    line.break_()
    assert Workspace.existing(uri)
    line.break_(("503", "GET", "", 8))
    assert not Workspace(uri, STEADY).is_empty(), "which has answered, and may fail for a while"


@pytest.mark.parametrize(
    ("fault", "message"),
    [("403", "these credentials may not do it"), ("signature", "credentials are missing, wrong or expired")],
)
def test_a_refusal_is_told_at_once_and_holds_no_secret(workspace, line, fault: str, message: str) -> None:
    line.break_((fault, "", "", 10_000))
    for act in (
        lambda: workspace.read("a"),
        lambda: workspace.publish("a", b""),
        lambda: workspace.publish_document(SNAPSHOT),
    ):
        with pytest.raises(EnvironmentProblem, match=message) as caught:
            act()
        assert "hunter2" not in str(caught.value) and "AKIA" not in str(caught.value)
    assert len(line.log()) == 3


def test_a_workspace_that_may_be_read_and_not_written_is_refused_at_once(line) -> None:
    line.break_(("403", "PUT", ".probe", 10_000))
    with pytest.raises(EnvironmentProblem, match="these credentials may not do it"):
        Workspace.create(f"s3://{line.bucket}/prefix")


def test_a_bucket_that_is_not_there_is_refused_by_name_and_not_made(s3_environment: dict[str, str]) -> None:
    uri = f"s3://missing-{uuid.uuid4().hex}/prefix"
    for _ in range(2):
        with pytest.raises(EnvironmentProblem, match=r"there is no such bucket here \(NoSuchBucket\)"):
            Workspace.create(uri)


def test_a_name_that_no_bucket_can_have_is_refused(s3_environment: dict[str, str]) -> None:
    with pytest.raises(EnvironmentProblem, match="no such bucket"):
        Workspace.create("s3://B/prefix")


def test_missing_credentials_are_named(workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    workspace.fs.clear_instance_cache()
    with pytest.raises(EnvironmentProblem, match=r"credentials are missing.*AWS_PROFILE"):
        Workspace.create(workspace.uri, HASTY)


@pytest.mark.parametrize("uri", ["s3://AKIA:hunter2@bucket/x", "s3://bucket/x?secret=hunter2"])
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match="must not hold credentials") as caught:
        Workspace(uri)
    assert "hunter2" not in str(caught.value)


# Reading


def test_bits_flipped_on_the_way_down_are_never_served(workspace, line) -> None:
    stored = workspace.publish("a", b"x" * 1000)
    link = workspace.publish_document(SNAPSHOT)
    line.break_(("flip", "GET", "", 10_000))
    for act in (workspace.fetch, workspace.verify):
        with pytest.raises(IntegrityError, match="a: other bytes arrive"):
            act(stored)
    with pytest.raises(IntegrityError, match=document_path(link)):
        workspace.load(link, Snapshot)
    line.break_(("flip", "GET", "", 1))
    assert workspace.fetch(stored).read_bytes() == b"x" * 1000


def test_bits_flipped_in_the_store_are_found_by_digest_alone(workspace) -> None:
    stored = workspace.publish("a", b"x" * 1000)
    link = workspace.publish_document(SNAPSHOT)
    workspace.publish("a", b"x" * 999 + b"y")  # its checksum is right: moto, and a thief, know how to make one
    workspace.publish(document_path(link), SNAPSHOT.to_bytes().replace(b'"num_rows":0', b'"num_rows":1'))
    for act in (workspace.fetch, workspace.verify):
        with pytest.raises(IntegrityError, match="a: sha256 is"):
            act(stored)
    with pytest.raises(IntegrityError, match=f"{document_path(link)}: its bytes differ"):
        workspace.load(link, Snapshot)


@pytest.mark.parametrize("size_bytes", [0, 1000, LARGE_BYTES])
def test_an_object_cut_short_is_never_served(workspace, tmp_path: Path, size_bytes: int) -> None:
    stored = workspace.publish("a", os.urandom(size_bytes))
    if size_bytes:
        workspace.fs.pipe_file(workspace.path("a"), b"x" * (size_bytes - 1))
    else:
        workspace.fs.pipe_file(workspace.path("a"), b"x")
    with pytest.raises(IntegrityError, match="a: "):
        workspace.fetch(stored)


def test_an_object_that_is_gone_is_named(workspace) -> None:
    stored = workspace.publish("a", b"bytes")
    workspace.fs.rm_file(workspace.path("a"))
    for act in (workspace.fetch, workspace.verify):
        with pytest.raises(IntegrityError, match="a: the file is gone"):
            act(stored)


def test_many_threads_may_read_and_write_at_once(workspace) -> None:
    def there_and_back(number: int) -> bool:
        stored = workspace.publish(f"many/{number}", b"%d" % number * 100)
        return workspace.fetch(stored).read_bytes() == b"%d" % number * 100

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(40)))
    assert len(workspace.names("many")) == 40


def test_what_is_known_of_an_object_is_not_read_again_until_it_changes(workspace, line, tmp_path: Path) -> None:
    from headway.data_contracts.tables.digest_cache import DigestCache

    workspace.publish("a", b"first")
    known = DigestCache(tmp_path / "cache.json")
    assert workspace.digest("a", known) == sha256_bytes(b"first")
    known.save()
    again = DigestCache(tmp_path / "cache.json")
    line.break_()
    assert workspace.digest("a", again) == sha256_bytes(b"first")
    assert [method for method, *_ in line.log()] == ["HEAD"]
    workspace.publish("a", b"other")
    assert workspace.digest("a", again) == sha256_bytes(b"other")


NO_NAMES = ("runs/../x", "runs/./x", "runs//x", "runs/a\\b", f"runs/{'n' * 900}/result.json", "runs/one?versionId=x")


@pytest.mark.parametrize("key", NO_NAMES)
def test_an_object_under_a_name_that_no_file_of_ours_has_is_refused_by_name_and_hides_none(
    workspace, line, key: str
) -> None:
    """fsspec takes the last one for a version of `runs/one`: whoever removed it as listed removed that."""
    workspace.publish("runs/one", b"ours")
    put_by_another_program(line, key)
    assert workspace.names("runs") == ["one"]
    with pytest.raises(IntegrityError, match="no file of a workspace") as refused:
        list(workspace.files("runs"))
    assert refused.value.where == f"{workspace.uri}/{key}" and "Take it away" in refused.value.advice
    assert workspace.read("runs/one") == b"ours"


def test_a_folder_that_a_console_made_is_no_file(workspace, line) -> None:
    workspace.publish("runs/one", b"ours")
    for key in ("", "runs/", "runs/two/"):
        put_by_another_program(line, key, b"")
    assert [file.path for file in workspace.files("runs")] == ["runs/one"]
    assert workspace.names("runs") == ["one", "two"]
