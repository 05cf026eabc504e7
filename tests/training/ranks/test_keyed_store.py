"""The store through which the ranks of an attempt find each other: torch's contract, for who has the key."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import DistStoreError

from headway.training.launch.base.ports import LOOPBACK, free_port
from headway.training.launch.base.protocol import ATTEMPT_DIR, AttemptFiles, StorePlace
from headway.training.ranks.keyed_store import KeyedStore, store_of_attempt


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorePlace:
    """Of an attempt that has begun."""
    made = StorePlace(address=LOOPBACK, port=free_port(), key="k" * 64)
    AttemptFiles(tmp_path).write_store(made)
    monkeypatch.setenv(ATTEMPT_DIR, str(tmp_path))
    return made


@pytest.fixture
def store(place: StorePlace) -> Iterator[KeyedStore]:
    with store_of_attempt(0, 1, patience_s=60.0) as made:
        assert made is not None
        yield made


def test_it_keeps_what_a_store_of_torchs_keeps(store: KeyedStore, place: StorePlace) -> None:
    other = KeyedStore(place, 60.0)
    before = store.num_keys()
    store.set("bytes", bytes(range(256)))
    other.set("text", "word")
    assert (other.get("bytes"), store.get("text")) == (bytes(range(256)), b"word")
    assert (store.add("number", 2), other.add("number", -5), store.get("number")) == (2, -3, b"-3")
    assert other.compare_set("new", "", "first") == b"first"
    assert store.compare_set("new", "another", "second") == b"first"
    assert store.compare_set("new", "first", "second") == b"second" == other.get("new")
    assert other.compare_set("not there", "expected", "x") == b"expected" and not other.check(["not there"])
    assert store.check(["bytes", "text"]) and not store.check(["bytes", "nothing"])
    assert store.num_keys() == before + 4
    assert store.delete_key("new") and not other.delete_key("new") and not store.check(["new"])
    assert store.clone().get("text") == b"word"


def test_a_key_is_waited_for_and_its_absence_told(store: KeyedStore, place: StorePlace) -> None:
    heard: list[bytes] = []
    waiter = threading.Thread(target=lambda: heard.append(store.get("late")))
    waiter.start()
    store.set("other", b"1")  # by a thread that need not wait for that one
    KeyedStore(place, 60.0).set("late", b"here")
    waiter.join(60)
    assert heard == [b"here"]
    with pytest.raises(DistStoreError, match="not set in time: other, never"):
        store.wait(["other", "never"], timedelta(milliseconds=10))
    store.set_timeout(timedelta(milliseconds=10))
    with pytest.raises(DistStoreError, match="never"):
        store.get("never")


def test_ranks_that_come_at_different_times_all_have_it_once_the_last_is_there(place: StorePlace) -> None:
    there: list[int] = []
    all_are_there = threading.Event()

    def come(rank: int) -> None:
        with store_of_attempt(rank, 3, patience_s=60.0) as store:
            assert store is not None
            there.append(rank)
            all_are_there.wait(60)

    ranks = [threading.Thread(target=come, args=(rank,)) for rank in (2, 1, 0)]
    for rank in ranks[:2]:
        rank.start()
    ranks[0].join(0.2)
    assert there == [], "rank 0 is not there yet"
    ranks[2].start()
    while len(there) < 3:
        ranks[2].join(0.01)
    all_are_there.set()
    for rank in ranks:
        rank.join(60)
    assert sorted(there) == [0, 1, 2]


def test_without_the_key_nobody_reads_or_writes_it(store: KeyedStore, place: StorePlace) -> None:
    guessed = StorePlace(address=place.address, port=place.port, key="g" * 64)
    with pytest.raises(ConnectionError):
        KeyedStore(guessed, 0.0)


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_a_port_that_another_has_taken_costs_no_attempt(
    place: StorePlace, tmp_path: Path, ranks: tuple[int, ...]
) -> None:
    met: list[bytes] = []

    def come(rank: int) -> None:
        with store_of_attempt(rank, 2, patience_s=60.0) as store:
            assert store is not None
            store.set(f"rank {rank}", b"here")
            met.append(store.get(f"rank {1 - rank}"))

    with socket.create_server((place.address, place.port)):  # takes connections, and never says a word
        threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert met == [b"here", b"here"]
    files = AttemptFiles(tmp_path)
    told = files.read_store()
    assert told is not None and told.port != place.port and told.key == place.key
    assert files.store.stat().st_mode & 0o077 == 0, "the key is the user's alone"


def test_an_address_that_this_machine_does_not_have_is_told_in_one_line(place: StorePlace, tmp_path: Path) -> None:
    AttemptFiles(tmp_path).write_store(dataclasses.replace(place, address="192.0.2.1"))
    with (
        pytest.raises(ConnectionError, match=r"the store of rank 0 at 192\.0\.2\.1, port .*: Cannot assign"),
        store_of_attempt(0, 1, patience_s=1.0),
    ):
        pass


def test_without_a_supervisor_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT_DIR, str(tmp_path))
    with store_of_attempt(0, 1, patience_s=1.0) as store:
        assert store is None
