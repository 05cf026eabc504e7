from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.training.data.load.node_cache import Item, NodeCache
from tests.waiting import DEADLINE_S, wait_until

REPOSITORY = Path(__file__).resolve().parents[4]


def item(name: str, size_bytes: int = 100) -> Item:
    return Item(hashlib.sha256(name.encode()).hexdigest(), size_bytes)


def filled(value: int) -> Callable[[Path], None]:
    def make(part: Path) -> None:
        part.write_bytes(bytes([value]) * part.stat().st_size)

    return make


def refuse(part: Path) -> None:
    raise AssertionError("it is there already")


def held(cache: NodeCache) -> set[str]:
    return {path.name for path in (cache.folder / "files").iterdir()}


def test_no_other_user_reads_the_shards_of_a_cache_that_is_made_here_and_a_team_shares_one_that_it_made(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    before = os.umask(0o022)
    try:
        for folder in (tmp_path / "new", shared):
            NodeCache(folder, 1000).pin([item("a")]).close()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "new", shared)] == [0o700, 0o770]


@pytest.mark.parametrize("place", ["files", "leases"])
def test_what_is_none_of_ours_is_neither_counted_nor_removed(tmp_path: Path, place: str) -> None:
    cache = NodeCache(tmp_path / "cache", 150)
    cache.pin([item("a")]).close()
    cache.entry(item("a"), filled(1))
    folder = cache.folder / place
    (folder / "notes.txt").write_bytes(b"x" * 1000)
    (folder / "folder").mkdir()
    (folder / ("0" * 64)).symlink_to(tmp_path / "nowhere")
    (folder / ("1" * 32)).symlink_to("1" * 32)
    os.mkfifo(folder / "pipe")
    before = sorted(folder.iterdir())
    assert [each.name for each in cache.unused_since(1 << 40, evict=False)] == [item("a").name]
    cache.entry(item("b"), filled(2))  # in the stead of `a`
    assert cache.unused_since(1 << 40, evict=True) == [item("b")]
    ours = {folder / item("a").name} if place == "files" else set()
    assert sorted(folder.iterdir()) == sorted({*before} - ours)


def test_an_entry_is_made_once_and_stays(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1000)
    with_lease = cache.pin([item("a")])
    path = cache.entry(item("a"), filled(7))
    assert path.read_bytes() == b"\7" * 100
    assert cache.entry(item("a"), refuse) == path
    with_lease.close()
    again = NodeCache(tmp_path / "cache", 1000)
    pin = again.pin([item("a")])
    assert again.entry(item("a"), refuse) == path
    pin.close()


def test_of_many_who_want_an_entry_one_makes_it(tmp_path: Path) -> None:
    cache, makers, paths = NodeCache(tmp_path, 1000), [], []
    pin = cache.pin([item("a")])

    def make(part: Path) -> None:
        makers.append(part)
        filled(1)(part)

    threads = [threading.Thread(target=lambda: paths.append(cache.entry(item("a"), make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(makers) == 1 and len(set(paths)) == 1 and len(paths) == 8
    pin.close()


def test_nobody_sees_an_entry_before_it_is_whole(tmp_path: Path) -> None:
    cache, seen = NodeCache(tmp_path, 1000), []
    pin = cache.pin([item("a")])

    def make(part: Path) -> None:
        part.write_bytes(b"\1" * 50)
        seen.append(item("a").name in held(cache))
        filled(1)(part)

    cache.entry(item("a"), make)
    assert seen == [False]
    pin.close()


def test_a_maker_that_fails_leaves_nothing_and_the_next_one_makes_it(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 1000)
    pin = cache.pin([item("a")])

    def fail(part: Path) -> None:
        part.write_bytes(b"half")
        raise KeyError("storage")

    with pytest.raises(KeyError):
        cache.entry(item("a"), fail)
    assert held(cache) == set()
    assert cache.entry(item("a"), filled(1)).stat().st_size == 100
    pin.close()


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 300)
    for age, name in enumerate(["c", "b", "a"]):
        pin = cache.pin([item(name)])
        path = cache.entry(item(name), filled(1))
        pin.close()
        os.utime(path, (10**9 - age, 10**9 - age))
    pin = cache.pin([item("a")])
    cache.entry(item("a"), refuse)  # the oldest, but used just now
    pin.close()
    pin = cache.pin([item("d")])
    cache.entry(item("d"), filled(1))
    assert held(cache) == {item(name).name for name in "acd"}
    pin.close()


def test_what_is_in_use_is_never_evicted(tmp_path: Path) -> None:
    cache, other = NodeCache(tmp_path, 250), NodeCache(tmp_path, 250)
    using = other.pin([item("a"), item("b")])
    other.entry(item("a"), filled(1))
    other.entry(item("b"), filled(1))
    pin = cache.pin([item("c")])
    with pytest.raises(EnvironmentProblem, match=r"no room for 100 bytes: all of the 250 .* are in use.*cache_bytes"):
        cache.entry(item("c"), filled(1))
    assert held(cache) == {item("a").name, item("b").name}
    using.close()
    cache.entry(item("c"), filled(1))
    assert len(held(cache)) == 2
    pin.close()


def test_more_than_the_cache_may_hold_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 150)
    with pytest.raises(ConfigError, match=r"the shards take 200 bytes, the node's cache may hold 150.*cache_bytes"):
        cache.pin([item("a"), item("b")])
    assert not (tmp_path / "cache").exists()


def test_the_same_file_twice_counts_once(tmp_path: Path) -> None:
    NodeCache(tmp_path, 150).pin([item("a"), item("a")]).close()


def test_an_entry_of_another_size_is_made_anew(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 1000)
    pin = cache.pin([item("a")])
    path = cache.entry(item("a"), filled(1))
    path.unlink()
    path.write_bytes(b"short")
    assert cache.entry(item("a"), filled(2)).read_bytes() == b"\2" * 100
    pin.close()


def test_a_bad_entry_is_renewed_by_the_first_who_found_it_bad(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 1000)
    pin = cache.pin([item("a")])
    path = cache.entry(item("a"), filled(1))
    with path.open("rb") as bad:
        inode = path.stat().st_ino
        cache.renew(item("a"), path, inode, filled(2))
        assert cache.renew(item("a"), path, inode, refuse).read_bytes() == b"\2" * 100
        assert bad.read() == b"\1" * 100  # whoever maps the old one still does
    pin.close()


def test_a_folder_that_cannot_be_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"cannot be written .*cache_folder"):
        NodeCache(tmp_path / "file" / "cache", 1000).pin([item("a")])


@pytest.fixture
def small_disk(new_disk) -> Path:
    return new_disk(64 << 10)


def test_a_disk_that_is_full_is_told_before_anything_is_fetched_and_another_try_completes(small_disk: Path) -> None:
    cache = NodeCache(small_disk, 1 << 20)
    pin = cache.pin([item("a", 20_000), item("b", 20_000)])
    cache.entry(item("a", 20_000), filled(1))
    filler = small_disk / "filler"
    filler.write_bytes(bytes(30_000))
    with pytest.raises(EnvironmentProblem, match=r"no space left for the node's cache.*is kept.*cache_folder") as told:
        cache.entry(item("b", 20_000), refuse)
    assert told.value.where == str(small_disk)
    assert held(cache) == {item("a").name}
    filler.unlink()
    assert cache.entry(item("b", 20_000), filled(2)).read_bytes() == b"\2" * 20_000
    pin.close()


def test_a_disk_that_fills_up_while_an_entry_is_made_leaves_nothing_of_it(small_disk: Path) -> None:
    cache = NodeCache(small_disk, 1 << 20)
    pin = cache.pin([item("a", 20_000)])

    def overflow(part: Path) -> None:
        (small_disk / "beside").write_bytes(bytes(1 << 20))

    with pytest.raises(EnvironmentProblem, match="no space left for the node's cache"):
        cache.entry(item("a", 20_000), overflow)
    assert held(cache) == set()
    (small_disk / "beside").unlink()
    cache.entry(item("a", 20_000), filled(1))
    pin.close()


def test_a_disk_too_full_for_a_lease_is_told_and_no_lease_stays(small_disk: Path) -> None:
    cache = NodeCache(small_disk, 1 << 20)
    cache.pin([]).close()
    with (small_disk / "filler").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(bytes(4096))
    with pytest.raises(EnvironmentProblem, match="no space left for the node's cache"):
        cache.pin([item("a")])
    assert list((small_disk / "leases").iterdir()) == []


def test_on_a_disk_too_small_for_what_was_promised_the_unused_goes_first(small_disk: Path) -> None:
    cache = NodeCache(small_disk, 1 << 20)
    old = cache.pin([item("a", 30_000)])
    cache.entry(item("a", 30_000), filled(1))
    old.close()
    pin = cache.pin([item("b", 40_000)])
    cache.entry(item("b", 40_000), filled(2))
    assert held(cache) == {item("b").name}
    pin.close()


HOLDER = """
import sys, time
from pathlib import Path
from headway.training.data.load.node_cache import Item, NodeCache
cache, item = NodeCache(Path(sys.argv[1]), 250), Item(sys.argv[2], 100)
pin = cache.pin([item])
def make(part):
    if sys.argv[3] == "half":
        with part.open("r+b") as out:
            out.write(b"h" * 50)
        print("half", flush=True)
        time.sleep(600)
    part.write_bytes(b"w" * 100)
cache.entry(item, make)
print("whole", flush=True)
time.sleep(600)
"""


def holder(folder: Path, name: str, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), item(name).name, how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == how
    return process


@pytest.mark.process
def test_killing_the_maker_half_way_shows_nothing_and_frees_its_lock(tmp_path: Path) -> None:
    process = holder(tmp_path, "a", "half")
    cache, found = NodeCache(tmp_path, 250), []
    pin = cache.pin([item("a")])
    waiting = threading.Thread(target=lambda: found.append(cache.entry(item("a"), filled(3))))
    waiting.start()
    assert item("a").name not in held(cache)
    assert waiting.is_alive()
    process.send_signal(signal.SIGKILL)
    process.wait()
    waiting.join(DEADLINE_S)
    assert found[0].read_bytes() == b"\3" * 100
    assert held(cache) == {item("a").name}
    pin.close()


@pytest.mark.process
def test_a_process_in_another_keeps_its_entries_until_it_dies(tmp_path: Path) -> None:
    process = holder(tmp_path, "a", "whole")
    cache = NodeCache(tmp_path, 250)
    pin = cache.pin([item("b"), item("c")])
    cache.entry(item("b"), filled(1))
    with pytest.raises(EnvironmentProblem, match="are in use"):
        cache.entry(item("c"), filled(1))
    process.send_signal(signal.SIGKILL)
    process.wait()
    cache.entry(item("c"), filled(1))
    assert held(cache) == {item("b").name, item("c").name}
    assert len(list((tmp_path / "leases").iterdir())) == 1  # the dead one's is gone too
    pin.close()


@pytest.mark.process
def test_what_a_killed_maker_left_makes_room(tmp_path: Path) -> None:
    process = holder(tmp_path, "a", "half")
    process.send_signal(signal.SIGKILL)
    process.wait()
    cache = NodeCache(tmp_path, 250)
    pin = cache.pin([item("b"), item("c")])
    cache.entry(item("b"), filled(1))
    cache.entry(item("c"), filled(1))
    assert held(cache) == {item("b").name, item("c").name}
    pin.close()


def test_whoever_waits_hears_that_the_maker_moves(tmp_path: Path) -> None:
    cache, moves, go_on = NodeCache(tmp_path, 1000), [], threading.Event()
    pin = cache.pin([item("a")])

    def make(part: Path) -> None:
        for number in range(3):
            wait_until(lambda number=number: len(moves) > number)  # type: ignore[misc]
            with part.open("r+b") as out:
                out.write(bytes([number]))
            os.utime(part, ns=(number, number))
        go_on.wait(DEADLINE_S)

    maker = threading.Thread(target=lambda: cache.entry(item("a"), make))
    maker.start()
    wait_until(lambda: any(path.suffix == ".part" for path in (tmp_path / "files").iterdir()))
    waiter = threading.Thread(target=lambda: cache.entry(item("a"), refuse, lambda: moves.append(1)))
    waiter.start()
    wait_until(lambda: len(moves) > 3)
    go_on.set()
    maker.join(DEADLINE_S)
    waiter.join(DEADLINE_S)
    pin.close()
