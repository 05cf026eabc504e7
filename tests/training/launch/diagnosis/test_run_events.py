"""What the ledgers of a run say of its attempts: all of this run, nothing of another, once, as it comes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles, write_json
from headway.training.launch.base.retry_budget import RECORDS_NAME
from headway.training.launch.diagnosis.run_events import RunEvents
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.observe.ledger import Ledger


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / ("a" * 16)


def record(spool: Path, name: str, unix_s: float, **fields: Any) -> None:
    with contextlib.closing(Ledger(spool)) as ledger:
        ledger.event(name, **fields, unix_s=unix_s)


def begin(gang_dir: Path, number: int, unix_s: float) -> AttemptFiles:
    """An attempt of flow run `one`."""
    files = AttemptFiles(attempt_folder(gang_dir, number))
    files.folder.mkdir(parents=True)
    record(gang_dir / RECORDS_NAME, "attempt.begin", unix_s, attempt=number, scope="one")
    return files


def mark(files: AttemptFiles, rank: int, **fields: Any) -> None:
    marker = {"rank": rank, "pid": 10 + rank, "parent_pid": 1, "state": "running", "unix_s": 0.0}
    write_json(files.marker(rank), marker | fields)


def ledgers(run_dir: Path) -> Path:
    return run_dir.parent.parent / "ledger"


def flow_spool(run_dir: Path) -> Path:
    return ledgers(run_dir) / "one" / "flow.jsonl"


def names(events: RunEvents) -> list[str]:
    return [each.event["event"] for each in events.read()]


def test_events_of_owner_guards_and_ranks_come_by_time_and_once(run_dir) -> None:
    files, events = begin(run_dir, 1, 1.0), RunEvents(run_dir, ledgers(run_dir))
    record(files.node_spool(0), "agent.begin", 2.0)
    record(files.rank_spool(0), "rank.armed", 3.0)
    mark(files, 0)
    record(files.rank_spool(0), "restore", 3.5, duration_s=2.0, outcome="ok")
    record(flow_spool(run_dir), "attempt.begin", 1.0, attempt=1, folder=str(files.folder))
    record(flow_spool(run_dir), "rank.slow", 4.0, attempt=1)
    told = list(events.read())
    assert [(each.unix_s, each.event["event"], each.rank) for each in told] == [
        *((1.0, "attempt.begin", None), (2.0, "agent.begin", None), (3.0, "rank.armed", 0)),
        *((4.0, "rank.slow", None), (5.5, "restore", 0)),
    ], "a span has the time of its end"
    assert list(events.read()) == []
    record(flow_spool(run_dir), "rank.lost", 6.0, attempt=1)
    assert names(events) == ["rank.lost"]


def test_what_a_flow_says_of_other_runs_and_of_other_gangs_is_not_taken_for_this_ones(run_dir) -> None:
    ours, scored = begin(run_dir, 1, 1.0), begin(run_dir / "evaluate" / "abc", 1, 2.0)
    for folder, what in (
        (ours.folder, "ours"),
        (run_dir.with_name("b" * 16) / "attempts" / "001", "another's"),
        (scored.folder, "scored"),
    ):
        record(flow_spool(run_dir), "attempt.begin", 3.0, attempt=1, folder=str(folder))
        record(flow_spool(run_dir), "attempt.stop", 3.0, attempt=1, reason=what)

    def message(attempt: int | None) -> list[tuple[str, str]]:
        told = RunEvents(run_dir, ledgers(run_dir), attempt=attempt).read()
        return [(each.gang, each.event["reason"]) for each in told if "reason" in each.event]

    assert message(None) == [("train", "ours"), ("evaluate/abc", "scored")]
    assert message(1) == [("train", "ours")]
    assert message(2) == []


def test_a_folder_that_a_damaged_line_does_not_name_is_the_one_before(run_dir) -> None:
    files = begin(run_dir, 1, 1.0)
    record(flow_spool(run_dir), "attempt.begin", 1.0, attempt=1, folder=str(files.folder))
    record(flow_spool(run_dir), "rank.slow", 2.0, attempt=1, folder=None)
    assert names(RunEvents(run_dir, ledgers(run_dir))) == ["attempt.begin", "rank.slow"]


def test_what_a_job_wrote_is_read_once_though_a_flow_took_it_over(run_dir) -> None:
    files = begin(run_dir, 1, 1.0)
    spools = (DetachedFiles(run_dir).spool("7", 0), flow_spool(run_dir))
    for spool in spools:
        record(spool, "attempt.begin", 1.0, attempt=1, folder=str(files.folder), job="7")
        record(spool, "rank.lost", 2.0, attempt=1, job="7")
    assert names(RunEvents(run_dir, ledgers(run_dir))) == ["attempt.begin", "rank.lost"]


def test_one_rank_alone_is_its_own_events_and_what_its_guard_says_of_it(run_dir) -> None:
    files = begin(run_dir, 1, 1.0)
    for rank in (0, 1):
        mark(files, rank)
        record(files.rank_spool(rank), "rank.armed", 2.0 + rank)
        record(files.rank_spool(rank), "restore", 4.0 + rank)
    record(files.node_spool(0), "rank.lost", 6.0, ranks=[0])
    record(files.node_spool(0), "rank.lost", 7.0, ranks=[0, 1])
    of_one = RunEvents(run_dir, ledgers(run_dir), ranks=[1]).read()
    assert [(each.event["event"], each.rank) for each in of_one] == [
        ("rank.armed", 1),
        ("restore", 1),
        ("rank.lost", 1),
    ]
    of_all = RunEvents(run_dir, ledgers(run_dir)).read()
    assert [(each.event["event"], each.rank) for each in of_all] == [
        *(("attempt.begin", None), ("rank.armed", 0), ("rank.armed", 1)),
        *(("restore", 0), ("rank.lost", 0), ("rank.lost", 1)),
    ], "what every rank writes alike comes from rank 0"


def test_every_rank_comes_with_its_process_and_host_and_with_how_it_failed(run_dir) -> None:
    files, events = begin(run_dir, 1, 1.0), RunEvents(run_dir, ledgers(run_dir), ranks=[3])
    write_json(files.status(1), {"node": 1, "guard_pid": 1, "agent_pid": 1, "state": "running", "host": "there"})
    mark(files, 3, node=1)
    assert list(events.read()) == [], "what came up and has not said so yet is told later"
    record(files.rank_spool(3), "rank.armed", 2.0)
    (up,) = events.read()
    assert (up.unix_s, up.event["pid"], up.event["host"]) == (2.0, 13, "there")
    mark(files, 3, node=1, state="failed", unix_s=9.0, failure={"what": "no more memory."})
    (failed,) = events.read()
    assert (failed.unix_s, failed.event["event"], failed.event["what"]) == (9.0, "rank.failed", "no more memory.")
    assert list(events.read()) == []
