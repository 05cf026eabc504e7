"""A database that somebody else wrote is read where it is files of tables, and else refused before it is asked."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store.regular_files import NotRegular
from headway.data_contracts.tables.sqlite_files import BESIDE, NAMES_ANOTHER, plain_database

ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c"
PLAIN = "create table runs (name text not null, number integer check (number > 0), primary key (name))"


def made(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in (PLAIN, "create index by_number on runs (number)", *statements):
            database.execute(statement)
        database.commit()
    return path


KILLED = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma cache_size = 1")
database.execute("pragma cache_spill = 1")
database.execute("begin")
database.execute("update runs set name = name || '-altered'")
database.executemany("insert into runs values (?, 1)", [(f"{number:0500d}",) for number in range(2000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tables_are_read(tmp_path: Path) -> None:
    path = made(tmp_path / "a ?#%.db", "pragma journal_mode = wal", "insert into runs values ('a', 1)")
    (tmp_path / "link").symlink_to(path)
    for each in (path, tmp_path / "link"):
        with plain_database(each) as database:
            assert database.execute("select name from runs").fetchall() == [("a",)]
    with pytest.raises(FileNotFoundError), plain_database(tmp_path / "none.db"):
        pass
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"), plain_database(tmp_path / "circle"):
        pass


@pytest.mark.process
def test_what_a_killed_writer_left_is_put_in_order(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", "insert into runs values ('a', 1)")
    assert subprocess.run([sys.executable, "-c", KILLED, path]).returncode == -signal.SIGKILL
    assert Path(f"{path}-journal").stat().st_size
    with plain_database(path, "rw") as database:
        assert database.execute("select name from runs").fetchall() == [("a",)]


def test_a_file_that_a_journal_names_is_neither_opened_nor_removed(tmp_path: Path) -> None:
    path, theirs = made(tmp_path / "a.db"), tmp_path / "theirs"
    theirs.write_text("mine")
    name = str(theirs).encode()
    header = NAMES_ANOTHER + struct.pack(">IIIII", 0, 0, path.stat().st_size // 4096, 512, 4096)
    parts = (struct.pack(">I", 2), name, struct.pack(">II", len(name), sum(name)), NAMES_ANOTHER)
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0") + b"".join(parts))
    with pytest.raises(ValueError, match="its journal names another file"), plain_database(path, "rw"):
        pass
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (f"create view experiments as {ENDLESS}", "view experiments"),
        ("alter table runs add column size as (length(zeroblob(number)))", "generated column runs.size"),
        ("create table other (a, b integer generated always as (a + 1) stored)", ""),
        ("create trigger t after update on runs begin delete from runs; end", ""),
        ("create virtual table words using fts5(word)", "virtual words"),
    ],
)
def test_what_would_be_computed_as_it_is_read_is_named_and_never_asked(
    tmp_path: Path, statement: str, named: str
) -> None:
    path = made(tmp_path / "a.db", statement)
    if not named:  # reading computes nothing
        with plain_database(path):
            return
    with pytest.raises(ValueError, match=f"{named}, which would be computed"), plain_database(path):
        pass


@pytest.mark.parametrize(
    ("statement", "forged", "named"),
    [
        (f"create view experiments as {ENDLESS}", "type = 'VIEW' where name = 'experiments'", "view experiments"),
        (
            "alter table runs add column size as (length(zeroblob(number)))",
            "type = 'Table' where name = 'runs'",
            r"generated column runs\.size",
        ),
        (
            "create virtual table words using fts5(word)",
            "sql = 'CREATE /**/ VIRTUAL TABLE words USING fts5(word)' where name = 'words'",
            "virtual words",
        ),
    ],
)
def test_it_goes_by_what_sqlite_reads_and_not_by_what_the_schema_is_called(
    tmp_path: Path, statement: str, forged: str, named: str
) -> None:
    path = made(tmp_path / "a.db", statement, "pragma writable_schema = on", f"update sqlite_schema set {forged}")
    with pytest.raises(ValueError, match=named), plain_database(path):
        pass


TRIGGER = "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END"


def test_a_trigger_is_named_before_it_can_run_unless_it_is_known(tmp_path: Path) -> None:
    path = made(tmp_path / "a.db", TRIGGER)
    with pytest.raises(ValueError, match="the trigger t, which would be run"), plain_database(path, triggers=()):
        pass
    with plain_database(path, triggers=(TRIGGER,)), plain_database(made(tmp_path / "b.db"), triggers=()):
        pass


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("create table t (n integer check (length(hex(zeroblob(1000000000))) > n))", "t calls length"),
        ("create table t (n integer default (hex(zeroblob(1000000000))))", "t calls hex"),
        ('create table t (n integer default ("HEX" /* ( */ (1)))', "t calls hex"),
        ("create table 't' (n integer default (abs(1)))", "t calls abs"),
        ("create table t (n integer default ([hex] -- (\n (1)))", "t calls hex"),
        ("create table t (n integer, m as (abs(n)) stored)", "t calls abs"),
        ("create table t (n text check (n not like '%a%a%a%b'))", "t calls like"),
        ("create index i on runs (upper(name))", "i calls upper"),
        ("create index i on runs (name) where abs(number) > 1", "i calls abs"),
    ],
)
def test_a_function_that_writing_would_call_is_named(tmp_path: Path, statement: str, what: str) -> None:
    path = made(tmp_path / "a.db", statement)
    with pytest.raises(ValueError, match=rf"{what}\(\), which would be computed"), plain_database(path, triggers=()):
        pass
    with plain_database(path):
        pass


def test_types_texts_comments_and_keywords_are_no_calls(tmp_path: Path) -> None:
    statement = """
        create table "date" (a char(36) default 'hex(1)' check (a in ('x', 'it''s abs(1)')), "abs" integer, -- abs(1)
        b varchar(9) check (b = ('a like b') or (b)), c as ("abs" - 1) stored, primary key (a), unique (b, "abs"))
    """
    with plain_database(made(tmp_path / "a.db", statement), triggers=()):
        pass


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("ending", ["", *BESIDE])
def test_a_pipe_keeps_nobody_waiting(tmp_path: Path, ending: str, is_link: bool) -> None:
    path = tmp_path / "a.db" if not ending else made(tmp_path / "a.db")
    os.mkfifo(f"{path}{ending}")
    (tmp_path / "elsewhere").mkdir()
    (link := tmp_path / "elsewhere" / "b.db").symlink_to(path)
    asked = link if is_link else path
    with pytest.raises(NotRegular, match="a pipe, not a file") as caught, plain_database(asked, "rw"):
        pass
    assert caught.value.filename == f"{path}{ending}"
