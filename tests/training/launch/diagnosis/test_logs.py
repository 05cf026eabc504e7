"""All logs of a run merged by time: every line once, with who wrote it when, however its writer ended."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path

import pytest

from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.log_times import LogTimes
from headway.training.launch.base.protocol import AttemptFiles, write_json
from headway.training.launch.diagnosis.logs import MAX_LINE_BYTES, LogLine, RunLogs
from headway.training.launch.diagnosis.run_events import RunEvent, RunEvents
from headway.training.launch.supervise.supervisor import supervise


class Attempt:
    """An attempt's folder as guards and ranks leave it."""

    def __init__(self, run_dir: Path, number: int = 1) -> None:
        self.files = AttemptFiles(attempt_folder(run_dir, number))
        self.files.folder.mkdir(parents=True)

    def write(
        self, rank: int, data: bytes, *, node: int = 0, stream: str = "stdout", unix_s: float | None = None
    ) -> None:
        path = self.files.rank_logs(node) / "abc" / "attempt_0" / str(rank) / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files.node_log(node).touch()
        with path.open("ab") as file:
            file.write(data)
        marker = {"rank": rank, "pid": 1, "parent_pid": 1, "state": "running", "unix_s": 0.0}
        write_json(self.files.marker(rank), marker | {"log": str(path.with_name("stderr.log"))})
        if unix_s is not None:
            with self.files.log_times(node).open("a") as index:
                name = str(path.relative_to(self.files.folder))
                index.write(json.dumps([unix_s, name, path.stat().st_size]) + "\n")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def texts(lines) -> list[str]:
    return [line.text for line in lines]


def test_lines_of_all_ranks_come_by_time(tmp_path, attempt) -> None:
    attempt.write(0, b"one\n", unix_s=1.0)
    attempt.write(1, b"two\n", unix_s=2.0, node=1, stream="stderr")
    attempt.write(0, b"three\nand four\n", unix_s=3.0)
    lines = list(RunLogs(tmp_path).read(is_over=True))
    assert texts(lines) == ["one", "two", "three", "and four"]
    assert [(line.unix_s, line.rank, line.node, line.stream) for line in lines] == [
        (1.0, 0, 0, "stdout"),
        (2.0, 1, 1, "stderr"),
        (3.0, 0, 0, "stdout"),
        (3.0, 0, 0, "stdout"),
    ]


def message(unix_s: float, text: str, rank: str = "") -> bytes:
    """A line as torch begins it."""
    return f"{rank}W{datetime.datetime.fromtimestamp(unix_s):%m%d %H:%M:%S.%f} {text}\n".encode()


def test_a_line_that_says_its_time_stands_there_with_what_follows_it(tmp_path, attempt) -> None:
    seen_s = datetime.datetime(2026, 11, 22, 16, 41, 14).timestamp()
    attempt.write(0, message(seen_s - 0.1, "late", rank="[rank0]:["), unix_s=seen_s)
    attempt.write(1, message(seen_s - 0.5, "early") + b"  its traceback\n", unix_s=seen_s, stream="stderr")
    lines = list(RunLogs(tmp_path).read(is_over=True))
    assert [line.text.split()[-1] for line in lines] == ["early", "traceback", "late"]
    assert [seen_s - line.unix_s for line in lines] == pytest.approx([0.5, 0.5, 0.1])


@pytest.mark.parametrize("off_s", [0.5, -3600.0, -5.0], ids=["later", "another time zone", "long before"])
def test_a_time_that_cannot_be_is_not_believed(tmp_path, attempt, off_s) -> None:
    seen_s = datetime.datetime(2026, 11, 22, 16, 41, 14).timestamp()
    attempt.write(0, message(seen_s + off_s, "W") + b"W0230 25:61:61.123 no time at all\n", unix_s=seen_s)
    assert [line.unix_s for line in RunLogs(tmp_path).read(is_over=True)] == [seen_s, seen_s]


def test_the_order_of_a_file_stays_whatever_its_lines_say(tmp_path, attempt) -> None:
    seen_s = datetime.datetime(2026, 11, 22, 16, 41, 14).timestamp()
    attempt.write(0, message(seen_s - 0.1, "one") + message(seen_s - 0.3, "two"), unix_s=seen_s)
    attempt.write(0, b"three\n", unix_s=seen_s + 1)
    lines = list(RunLogs(tmp_path).read(is_over=True))
    assert [line.text.split()[-1] for line in lines] == ["one", "two", "three"]
    assert [line.unix_s - seen_s for line in lines] == pytest.approx([-0.1, -0.1, 1.0])


def test_one_rank_or_one_attempt_alone(tmp_path, attempt) -> None:
    attempt.write(0, b"zero\n", unix_s=1.0)
    attempt.write(1, b"one\n", unix_s=1.0)
    Attempt(tmp_path, 2).write(1, b"again\n", unix_s=2.0)
    Attempt(tmp_path / "evaluate" / "abc").write(0, b"scored\n", unix_s=3.0)
    assert texts(RunLogs(tmp_path, ranks=[1]).read(is_over=True)) == ["one", "again"]
    assert texts(RunLogs(tmp_path, attempt=1).read(is_over=True)) == ["zero", "one"]
    assert [line.gang for line in RunLogs(tmp_path, ranks=[0]).read(is_over=True)] == ["train", "evaluate/abc"]


def test_a_reader_that_follows_gets_every_line_once_and_none_before_its_time_is_known(tmp_path, attempt) -> None:
    logs = RunLogs(tmp_path)
    attempt.write(0, b"first\nhalf", unix_s=1.0)
    assert texts(logs.read(is_over=False)) == ["first"], "a line that is not whole waits"
    attempt.write(0, b" a line\nunseen\n")
    assert texts(logs.read(is_over=False)) == []
    attempt.write(0, b"", unix_s=2.0)
    assert texts(logs.read(is_over=False)) == ["half a line", "unseen"]
    attempt.write(0, b"last words")
    assert texts(logs.read(is_over=True)) == ["last words"], "a writer that is dead ends no line"
    assert texts(logs.read(is_over=True)) == []


def test_no_byte_is_too_strange_and_no_line_too_long(tmp_path, attempt) -> None:
    attempt.write(0, b"\xff\x00\r\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\n", unix_s=1.0)
    lines = texts(RunLogs(tmp_path).read(is_over=False))
    assert lines[0] == "\N{REPLACEMENT CHARACTER}\0"
    assert [len(line) for line in lines[1:]] == [MAX_LINE_BYTES, 5]


def test_an_index_that_is_torn_or_gone_costs_times_and_no_line(tmp_path, attempt) -> None:
    attempt.write(0, b"one\ntwo\n", unix_s=5.0)
    index = attempt.files.log_times(0)
    index.write_text("nonsense\n" + index.read_text() + '[7.0, "half')
    assert [line.unix_s for line in RunLogs(tmp_path).read(is_over=True)] == [5.0, 5.0]
    index.unlink()
    assert texts(RunLogs(tmp_path).read(is_over=True)) == ["one", "two"]


def test_the_index_says_when_a_file_grew_and_only_then(tmp_path, attempt) -> None:
    times = LogTimes(attempt.files, 0)
    attempt.write(0, b"one\n")
    for _ in range(2):
        times.look(at_once=True)
    attempt.write(0, b"two\n")
    before_s = time.time()
    times.look(at_once=True)
    marks = [json.loads(line) for line in attempt.files.log_times(0).read_text().splitlines()]
    assert [size for _, _, size in marks] == [4, 8]
    assert marks[0][0] <= marks[1][0] and marks[1][0] >= round(before_s, 3)


@pytest.mark.process
@pytest.mark.usefixtures("forked_agents")
def test_every_line_of_a_real_gang_comes_with_who_wrote_it_when_over_a_killed_rank_and_its_next_attempt(
    toy_run,
) -> None:
    followed, logs = list[LogLine](), RunLogs(toy_run.folder)
    happening, events = list[RunEvent](), RunEvents(toy_run.folder, toy_run.folder / "ledger")

    def poll() -> int | None:
        followed.extend(logs.read(is_over=False))
        happening.extend(events.read())
        return toy_run.newest_step()

    started_s = time.time()
    trouble = json.dumps({"kind": "kill", "rank": 1, "attempt": 1, "step": 3})
    gang = toy_run.gang("--steps", "6", "--in-step", "--trouble", trouble)
    spec = LaunchSpec(backoff_s=0)
    assert supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=poll).state == "done"
    followed.extend(logs.read(is_over=True))
    whole = list(RunLogs(toy_run.folder).read(is_over=True))
    assert sorted(map(repr, followed)) == sorted(map(repr, whole))
    assert [line.unix_s for line in whole] == sorted(line.unix_s for line in whole)

    spoken = [(line.attempt, line.rank, line.text) for line in whole if line.rank is not None]
    for rank in (0, 1):
        message = [text for attempt, of, text in spoken if (attempt, of) == (2, rank) and text.startswith("toy")]
        assert message[-1] == f"toy {rank} at 6", message
    assert (1, 1, "in the middle of a li") in spoken, "what a killed rank had begun to say"
    assert (1, 1, "toy 1 at 4") not in spoken
    markers = {number: toy_run.attempt(number).read_markers() for number in (1, 2)}
    assert all(line.host for line in whole)
    assert all(line.node == markers[line.attempt][line.rank].node for line in whole if line.rank is not None)
    assert all(started_s - 1 <= line.unix_s <= time.time() for line in whole)

    happened = list(RunEvents(toy_run.folder, toy_run.folder / "ledger").read())
    assert sorted(map(repr, [*happening, *events.read()])) == sorted(map(repr, happened))
    pids = {(each.attempt, each.rank): each.event["pid"] for each in happened if each.event["event"] == "rank.armed"}
    assert pids == {(number, rank): marker.pid for number in markers for rank, marker in markers[number].items()}
    story = [
        (each.attempt, each.event["event"]) for each in happened if each.event["event"] in ("attempt", "rank.lost")
    ]
    assert story == [(1, "rank.lost"), (1, "attempt"), (2, "attempt")]
    assert [each.rank for each in happened if each.event["event"] == "rank.lost"] == [1], "who was killed"
