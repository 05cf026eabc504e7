"""What an attempt takes, by what it has written down."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from headway.tasks.search.pace import pace_of
from headway.tasks.search.rungs import AttemptPace
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Ledger


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Of the first rank of the one attempt of a run, which took 20 s."""
    records = AttemptRecords(tmp_path)
    records.end(AttemptRecord(attempt=1, scope="a", state="done", start_unix_s=100.0, end_unix_s=120.0))
    return AttemptFiles(attempt_folder(tmp_path, 1)).rank_spool(0)


def write(spool: Path, *steps: dict[str, object]) -> None:
    with contextlib.closing(Ledger(spool)) as ledger:
        for step in steps:
            ledger.take_over({"event": "step", **step})


def test_a_start_is_all_but_the_steps_and_what_the_first_took_beyond_the_others(tmp_path: Path, spool: Path) -> None:
    write(spool, {"step": 1, "unix_s": 110.0, "duration_s": 3.0}, {"step": 2, "unix_s": 113.0, "duration_s": 1.0})
    assert pace_of(tmp_path) == AttemptPace(start_s=10.0 + 6.0 + 2.0, step_s=1.0)


def test_steps_of_which_nobody_says_what_they_took_tell_no_pace(tmp_path: Path, spool: Path) -> None:
    write(spool, {"step": 1, "unix_s": 110.0}, {"step": 2, "unix_s": 113.0, "duration_s": None})
    assert pace_of(tmp_path) is None
