"""A database that somebody else wrote is read where it is files of tables, and else refused before it is asked."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from headway.data_contracts.store.regular_files import NotRegular
from headway.data_contracts.tables.sqlite_files import BESIDE, plain_database

ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c"
PLAIN = "create table runs (name text not null, number integer check (number > 0), primary key (name))"


def made(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in (PLAIN, "create index by_number on runs (number)", *statements):
            database.execute(statement)
        database.commit()
    return path


def test_tables_are_read_also_after_a_writer_was_killed(tmp_path: Path) -> None:
    path = made(tmp_path / "a ?#%.db", "pragma journal_mode = wal", "insert into runs values ('a', 1)")
    with plain_database(path) as database:
        assert database.execute("select name from runs").fetchall() == [("a",)]
    with pytest.raises(FileNotFoundError), plain_database(tmp_path / "none.db"):
        pass
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (f"create view experiments as {ENDLESS}", "view experiments"),
        (f"CREATE TEMP VIEW x AS {ENDLESS}", ""),
        ("alter table runs add column size as (length(zeroblob(number)))", "generated column runs.size"),
        ("create table other (a, b integer generated always as (a + 1) stored)", ""),
        ("create trigger t after update on runs begin delete from runs; end", ""),
        ("create virtual table words using fts5(word)", "words"),
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


@pytest.mark.parametrize("ending", ["", *BESIDE])
def test_a_pipe_keeps_nobody_waiting(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "a.db" if not ending else made(tmp_path / "a.db")
    os.mkfifo(f"{path}{ending}")
    with pytest.raises(NotRegular, match="a pipe, not a file") as caught, plain_database(path, "rw"):
        pass
    assert caught.value.filename == f"{path}{ending}"
