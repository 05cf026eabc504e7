"""A ledger never ends its process for want of space, and never leaves half a line in a reader's way."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headway.training.observe.ledger
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.tasks.core.run_progress import read_steps
from headway.training.launch.base.log_times import Marks
from headway.training.launch.base.protocol import read_json
from headway.training.launch.diagnosis.hang_detection import stacks_text
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.diagnosis.rank_event_stream import last_events
from headway.training.observe.ledger import Ledger, SpoolTail, read_events


@contextlib.contextmanager
def no_file_longer_than(num_bytes: int) -> Iterator[None]:
    """The kernel refuses what goes beyond, as it does on a full disk: a write ends short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(spool: Path) -> list[str]:
    return [event["event"] for event in read_events(spool)]


def test_what_finds_no_space_is_written_once_there_is_some(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "spool.jsonl", rank=3)
    ledger.event("one")
    size_bytes = (tmp_path / "spool.jsonl").stat().st_size
    with no_file_longer_than(size_bytes + 10):
        ledger.event("two")
        assert (tmp_path / "spool.jsonl").stat().st_size == size_bytes + 10, "the write ended short"
        ledger.event("three")
        assert names(tmp_path / "spool.jsonl") == ["one"]
    ledger.event("four")
    assert names(tmp_path / "spool.jsonl") == ["one", "two", "three", "four"]


@pytest.mark.parametrize("news", [SpoolTail.poll, SpoolTail.stream], ids=["at once", "in pieces"])
def test_a_reader_that_follows_sees_every_line_once_and_whole(tmp_path: Path, monkeypatch, news) -> None:
    monkeypatch.setattr(headway.training.observe.ledger, "PIECE_BYTES", 10)
    ledger, tail = Ledger(tmp_path / "spool.jsonl"), SpoolTail(tmp_path / "spool.jsonl")
    for name in ("one", "two"):
        ledger.event(name)
    with no_file_longer_than((tmp_path / "spool.jsonl").stat().st_size + 20):
        ledger.event("three")
        seen = [event["event"] for event in news(tail)]
    ledger.event("four")
    assert [*seen, *(event["event"] for event in news(tail))] == ["one", "two", "three", "four"]


def test_what_waits_has_a_bound_and_what_is_dropped_is_counted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(headway.training.observe.ledger, "WAITING_BYTES", 1000)
    ledger = Ledger(tmp_path / "spool.jsonl", rank=3)
    with no_file_longer_than(0):
        for number in range(100):
            ledger.event("event", number=number)
    ledger.event("last")
    events = read_events(tmp_path / "spool.jsonl")
    (dropped,) = (event for event in events if event["event"] == "ledger.dropped")
    assert dropped["num_events"] + len(events) - 1 == 101 and dropped["rank"] == 3
    assert len(events) > 5


def test_a_line_torn_by_a_kill_does_not_swallow_the_next_writers_first(tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    Ledger(spool).event("one")
    spool.write_bytes(spool.read_bytes() + b'{"event":"two","unix')
    ledger = Ledger(spool)
    ledger.event("three")
    ledger.close()
    assert names(spool) == ["one", "three"]
    Ledger(spool).event("four")
    assert b"\n\n" not in spool.read_bytes()


def test_a_ledger_on_a_disk_that_is_full_from_the_beginning_waits_too() -> None:
    ledger = Ledger(Path("/dev/full"))
    ledger.event("one")
    with pytest.raises(EnvironmentProblem, match="No space left"):
        ledger.require_written()
    ledger.close()


def test_a_ledger_whose_folder_cannot_be_made_says_so_to_who_must_have_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ledger = Ledger(tmp_path / "file" / "spool.jsonl")
    ledger.event("one")
    with pytest.raises(EnvironmentProblem, match=r"spool\.jsonl"):
        ledger.require_written()
    (tmp_path / "file").unlink()
    ledger.require_written()
    assert names(tmp_path / "file" / "spool.jsonl") == ["one"]


def test_events_that_found_no_space_are_shown_to_listeners_all_the_same() -> None:
    ledger, seen = Ledger(Path("/dev/full")), []
    ledger.listeners.append(lambda event: seen.append(event["event"]))
    with ledger.span("work"):
        pass
    assert seen == ["work.begin", "work"]


def test_what_is_recorded_after_the_end_is_written_into_no_other_file(tmp_path: Path) -> None:
    ledger, seen = Ledger(tmp_path / "spool.jsonl"), []
    ledger.event("one")
    links = {path.name: path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    (number,) = (int(name) for name, file in links.items() if file == tmp_path / "spool.jsonl")
    ledger.listeners.append(lambda event: seen.append(event["event"]))
    with (tmp_path / "another").open("wb") as other:
        ledger.close()
        os.dup2(other.fileno(), number)
        try:
            ledger.event("late")
            with pytest.raises(EnvironmentProblem, match="closed"):
                ledger.require_written()
            ledger.close()
        finally:
            os.close(number)
    assert (tmp_path / "another").read_bytes() == b""
    assert names(tmp_path / "spool.jsonl") == ["one"] and seen == ["late"]


@pytest.mark.parametrize(
    "read",
    [
        read_events,
        read_steps,
        last_events,
        read_json,
        lambda path: last_lines(path, 5),
        lambda path: Marks(path).refresh(),
        stacks_text,
    ],
)
def test_a_pipe_or_device_in_the_place_of_a_record_keeps_no_reader_waiting(tmp_path: Path, read: Any) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    assert not read(pipe) and not read(device) and not read(tmp_path / "missing")


def test_a_hole_of_a_terabyte_in_a_record_ends_it_and_what_stands_before_is_read(tmp_path: Path) -> None:
    spool, marks, json_file = tmp_path / "spool.jsonl", tmp_path / "marks", tmp_path / "record.json"
    Ledger(spool).event("one")
    json_file.write_text("{}")
    for path in (spool, marks, json_file):
        with path.open("ab") as stream:
            stream.truncate(1 << 40)
    assert names(spool) == ["one"]
    assert [event["event"] for event in SpoolTail(spool).stream()] == ["one"]
    assert read_json(json_file) is None and stacks_text(json_file) == ""
    Marks(marks).refresh()
