"""A file that makes its parser crash, grow or fall silent is an answer, and leaves no process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import DataError, EnvironmentProblem
from headway.data_contracts.tables import helper_process, text_table_reader
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.tables.text_table_reader import convert, inferred_columns
from tests.known_processes import start_of
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SPEC = SourceSpec(format="csv", uri="data")
TROUBLED = "tests.data_contracts.toys.troubled_reader"


@pytest.fixture(autouse=True)
def troubled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(text_table_reader, "HOST", TROUBLED)
    monkeypatch.setattr(helper_process, "_idle", [])
    yield
    for process in helper_process._idle:
        process.close()


def columns(path: Path) -> dict[str, str]:
    return inferred_columns(SPEC, path, path.name, {}, keeps_bad=False)


def file(folder: Path, name: str, data: bytes = b"a,b\n1,x\n") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("SIGSEGV.csv", DataError, r"^SIGSEGV\.csv: it cannot be read as csv: it crashes the parser \(SIGSEGV\)"),
        ("SIGABRT.csv", DataError, r"crashes the parser \(SIGABRT\)"),
        ("SIGKILL.csv", EnvironmentProblem, r"^SIGKILL\.csv: .* was killed, most likely for want of memory"),
        ("exit.csv", EnvironmentProblem, r"^exit\.csv: .* ended with exit code 3"),
    ],
)
def test_an_end_of_the_process_names_the_file_and_the_next_file_is_read(
    tmp_path: Path, name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        columns(file(tmp_path, name))
    assert columns(file(tmp_path, "a.csv")) == {"a": "int64", "b": "string"}


def test_memory_is_bounded(tmp_path: Path) -> None:
    big = file(tmp_path, "large.csv", b"a,b\n" + b"x" * (15 << 20) + b",1\n" * 20)
    with pytest.raises(DataError, match=r"^large\.csv: .*(GiB of memory|crashes the parser|cannot be read as csv)"):
        convert(SPEC, big, "large.csv", {"a": "string", "b": "int64"}, tmp_path / "out", keeps_bad=False)


def test_silence_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns(file(tmp_path, "a.csv"))
    monkeypatch.setattr(text_table_reader, "SILENCE_S", 3.0)
    with pytest.raises(DataError, match=r"^silent\.csv: reading it made no progress for 3 s and was given up"):
        columns(file(tmp_path, "silent.csv"))
    assert start_of(int((tmp_path / "silent.pid").read_text())) == ""


def test_a_process_that_nobody_asks_ends_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDLE_S", "0.2")
    columns(file(tmp_path, "a.csv"))
    (idle,) = helper_process._idle
    wait_until(lambda: not Path(f"/proc/{idle.pid}").exists(), what="an end that leaves no zombie")
    assert helper_process._idle == []
    assert columns(file(tmp_path, "b.csv")) == {"a": "int64", "b": "string"}


def test_a_process_whose_thread_has_ended_is_not_missed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        thread = threading.Thread(target=columns, args=(file(tmp_path, name),))
        thread.start()
        thread.join()
    assert columns(file(tmp_path, "c.csv")) == {"a": "int64", "b": "string"}


def test_a_process_ends_with_its_owner(tmp_path: Path) -> None:
    file(tmp_path, "silent.csv")
    program = (
        "from pathlib import Path; from headway.data_contracts.tables import text_table_reader as reader;"
        f"reader.HOST = {TROUBLED!r}; from headway.data_contracts.tables.source_spec import SourceSpec;"
        f"reader.inferred_columns(SourceSpec(format='csv', uri='x'), Path({str(tmp_path / 'silent.csv')!r}), 'x', {{}},"
        " keeps_bad=False)"
    )
    owner = subprocess.Popen([sys.executable, "-c", program])
    note = tmp_path / "silent.pid"
    wait_until(lambda: note.exists() and note.read_text() != "")
    owner.kill()
    owner.wait()
    wait_until(lambda: start_of(int(note.read_text())) == "")
