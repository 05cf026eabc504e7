"""What another user who may write to an attempt's folder puts there leads no write of a run elsewhere."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from headway.training.launch.base.log_times import LogTimes
from headway.training.launch.base.protocol import AttemptFiles, StorePlace, overwrite_json, write_json


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("its own")
    return path


def _guessed(path: Path) -> Path:
    """The name under which a record was staged, where process and thread were all that told writers apart."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")


@pytest.mark.parametrize("is_private", [False, True])
def test_a_link_planted_where_a_record_is_staged_leads_nowhere(tmp_path: Path, victim: Path, is_private: bool) -> None:
    record = tmp_path / "rank-0.json"
    _guessed(record).symlink_to(victim)
    write_json(record, {"rank": 0}, is_private=is_private)
    assert victim.read_text() == "its own"
    assert not record.is_symlink() and json.loads(record.read_text()) == {"rank": 0}


def test_a_file_planted_where_the_key_is_staged_does_not_show_it(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path)
    planted = _guessed(files.store)
    planted.touch(mode=0o666)
    planted.chmod(0o666)
    with planted.open() as held:
        files.write_store(StorePlace(address="127.0.0.1", port=1, key="drawn"))
        assert "drawn" not in held.read()
    assert files.store.stat().st_mode & 0o077 == 0
    assert (place := files.read_store()) is not None and place.key == "drawn"


def test_a_record_that_became_a_link_is_not_written_over(tmp_path: Path, victim: Path) -> None:
    record = tmp_path / "rank-0.json"
    record.symlink_to(victim)
    with pytest.raises(OSError):
        overwrite_json(record, {"rank": 0})
    assert victim.read_text() == "its own"


def test_a_record_is_written_over_in_place(tmp_path: Path) -> None:
    record = tmp_path / "rank-0.json"
    write_json(record, {"rank": 0, "traceback": "x" * 1_000})
    number = record.stat().st_ino
    overwrite_json(record, {"rank": 0})
    assert json.loads(record.read_text()) == {"rank": 0} and record.stat().st_ino == number


def test_the_index_of_logs_is_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    files = AttemptFiles(tmp_path)
    files.node_log(0).write_text("a line\n")
    files.log_times(0).symlink_to(victim)
    LogTimes(files, 0).look(at_once=True)
    assert victim.read_text() == "its own"
    files.log_times(0).unlink()
    LogTimes(files, 0).look(at_once=True)
    assert files.log_times(0).read_text().endswith(', "node-0.log", 7]\n')
