"""Records of an attempt that others have altered are none, as one that is torn: nobody reads them with a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.launcher import HANDLE_NAME, Handle
from headway.training.launch.base.protocol import AttemptFiles, write_json
from headway.training.launch.base.retry_budget import RECORDS_NAME, AttemptRecords
from headway.training.launch.base.stop_request import NAME, StopRequest, request_stop, requested_stop

MARKER = {"rank": 0, "pid": 1, "parent_pid": 1, "state": "running", "unix_s": 0.0}
STATUS = {"node": 0, "guard_pid": 1, "agent_pid": 1, "state": "running"}
ALTERED: dict[str, Any] = {
    "a list": ["x"],
    "words": "x",
    "400 digits": 10**400,
    "nothing": None,
    "an object": {"a": 1},
}


@pytest.mark.parametrize("value", ALTERED.values(), ids=ALTERED)
@pytest.mark.parametrize("name", ["rank", "pid", "unix_s", "failure", "node", "swept", "guard_pid", "ranks", "port"])
def test_a_field_of_another_type_makes_a_record_none(tmp_path: Path, name: str, value: Any) -> None:
    if (name, value) in (("failure", {"a": 1}),):
        pytest.skip("unknown fields of a failure are a newer worker's")
    files = AttemptFiles(tmp_path)
    store, vitals = {"address": "here", "port": 1, "key": "k"}, {"ranks": [{"rank": 0, "state": "S", "cpu_s": 0.0}]}
    for path, record in (
        (files.marker(0), MARKER),
        (files.status(0), STATUS),
        (files.store, store),
        (files.vitals(0), vitals),
    ):
        write_json(path, record)
    assert set(files.read_markers()) == set(files.read_vitals()) == {0}
    assert files.read_status(0) is not None and files.read_store() is not None
    for path in tmp_path.iterdir():
        write_json(path, {**json.loads(path.read_text()), name: value})
    read = (files.read_markers(), files.read_vitals(), files.read_status(0), files.read_store())
    assert not all(read)


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"a":' * 200_000, b"null", b"[]", b"{}", b"9" * 5_000, b"\xff"])
def test_a_file_that_is_no_record_is_none(tmp_path: Path, data: bytes) -> None:
    files = AttemptFiles(tmp_path)
    request_stop(tmp_path, "asked")
    assert requested_stop(tmp_path) is not None
    names = (files.marker(0).name, files.status(0).name, files.vitals(0).name, files.store.name, HANDLE_NAME, NAME)
    for name in names:
        (tmp_path / name).write_bytes(data)
    assert files.read_markers() == files.read_vitals() == {}
    assert files.read_status(0) is files.read_store() is Handle.load(tmp_path) is None
    assert requested_stop(tmp_path) in (None, StopRequest())


def test_an_attempt_of_which_a_line_was_altered_is_known_by_its_other_line(tmp_path: Path) -> None:
    begun = {"event": "attempt.begin", "unix_s": 1.0, "attempt": 1, "scope": "s", "start_unix_s": 1.0}
    ended = {**begun, "event": "attempt", "state": "done", "step": 3}
    altered = [{**ended, name: value} for name, value in (("state", []), ("failure", 3), ("end_unix_s", "x"))]
    lines = (begun, ended, *altered, {**begun, "attempt": 2, "start_unix_s": []}, {**begun, "attempt": "3"})
    (tmp_path / RECORDS_NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = AttemptRecords(tmp_path).all()
    assert [(record.attempt, record.state, record.step) for record in found] == [(1, "done", 3)]


def test_a_stop_that_is_asked_for_at_no_date_still_has_words() -> None:
    for at_unix_s in (-1e18, 0.0, 9e18):
        assert str(StopRequest(at_unix_s=at_unix_s)).startswith("by ")
