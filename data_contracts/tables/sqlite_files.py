"""Databases of SQLite that others may have written: files and no pipes, of tables that compute nothing when they are
read. Standard library only.

A view may select without end, and a generated column hold a thread in one call that no deadline of ours ends. So may a
trigger as rows are written: whoever writes says which are known. A function in a constraint, a default or an index is
called then, too. Columns that are generated then are left alone, as far as they call none: MLflow has some.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from headway.data_contracts.store.regular_files import open_regular, require_regular

BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite opens next to a database, where it lies there."""
NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
"""At the end of a journal that names one more file, by its path, which SQLite would open, and remove as left over. Only
a program that writes two databases at once leaves such a journal."""
KNOWS_TABLES = (3, 37)
"""From this version on SQLite lists tables as it has parsed them; the schema's own words may be anybody's."""
BUSY_S = 5.0
# Columns of 2 are generated when they are read, of 3 when they are written.
_COMPUTED = """
select type || ' ' || name from pragma_table_list where schema = 'main' and type in ('view', 'virtual')
union all
select 'generated column ' || its.name || '.' || columns.name
from pragma_table_list as its, pragma_table_xinfo(its.name) as columns where its.schema = 'main' and columns.hidden = 2
limit 1
"""
# As SQLite writes them, whatever the statement was; before 3.40 it runs a trigger that calls itself a table. So what
# begins otherwise is a trigger: views and virtual tables have been refused by then.
_TRIGGERS = """
select name, sql from sqlite_master where sql is not null
and not (sql like 'CREATE TABLE %' or sql like 'CREATE INDEX %' or sql like 'CREATE UNIQUE INDEX %')
"""
LISTS_FUNCTIONS = (3, 30)
"""From this version on; an older SQLite is not asked."""
_FUNCTIONS = "select distinct lower(name) from pragma_function_list"
_TYPES = frozenset({"char"})
"""Functions that have the name of a type, which may have its length in parentheses."""
_OPERATORS = frozenset({"like", "glob", "regexp"})
"""Which call a function of their name: a pattern may take for ever."""
_WORDS = re.compile(
    r"""'(?:[^']|'')*'|--[^\n]*|/\*.*?(?:\*/|$)|"(?P<quoted>[^"]*)"|`(?P<ticked>[^`]*)`|\[(?P<boxed>[^]]*)\]"""
    r"""|(?P<bare>\w+)|(?P<other>\S)""",
    re.DOTALL,
)


@contextlib.contextmanager
def plain_database(
    file: Path, mode: Literal["ro", "rw"] = "ro", *, triggers: Collection[str] | None = None
) -> Iterator[sqlite3.Connection]:
    """
    Args:
        mode: one that was written to when its writer was killed is put in order by `rw` alone.
        triggers: the statements of those that it may have; None: any, for who reads alone.

    Raises:
        OSError: it is missing; it, or what lies beside it under a name that SQLite would open, is no regular file.
        ValueError: something in it would be computed, or another file opened; it is named.
        sqlite3.Error: it cannot be read.
    """
    file = Path(os.path.realpath(file, strict=True))  # as SQLite does, which looks beside what a link leads to
    require_regular(file, file.stat())
    for beside in (Path(f"{file}{ending}") for ending in BESIDE):
        if beside.exists():
            require_regular(beside, beside.stat())
    if _tail(Path(f"{file}-journal")) == NAMES_ANOTHER:
        raise ValueError("its journal names another file, which SQLite would open and may remove")
    with contextlib.closing(
        sqlite3.connect(f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=BUSY_S)
    ) as connection:
        found = connection.execute(_COMPUTED).fetchall() if sqlite3.sqlite_version_info >= KNOWS_TABLES else []
        for (what,) in found:
            raise ValueError(f"it has the {what}, which would be computed when it is read")
        if triggers is not None:
            for name, statement in connection.execute(_TRIGGERS).fetchall():
                if statement not in triggers:
                    raise ValueError(f"it has the trigger {name}, which would be run when it is written")
            _require_no_calls(connection)
        yield connection


def _tail(journal: Path) -> bytes:
    try:
        with open_regular(journal) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - len(NAMES_ANOTHER)))
            return stream.read()
    except FileNotFoundError:
        return b""


def _require_no_calls(connection: sqlite3.Connection) -> None:
    """Raises `ValueError`: a table or an index calls a function."""
    if sqlite3.sqlite_version_info < LISTS_FUNCTIONS:
        return
    functions = {name for (name,) in connection.execute(_FUNCTIONS)} - _TYPES
    of_tables = "select name, sql from sqlite_master where type in ('table', 'index') and sql is not null"
    for name, statement in connection.execute(of_tables).fetchall():
        for called in _called(statement):
            if called in functions:
                raise ValueError(f"{name} calls {called}(), which would be computed when it is written")


def _called(statement: str) -> Iterator[str]:
    """What stands before a parenthesis, in lower case: functions, and names of types and keywords."""
    before, is_list = "", True
    for word in _WORDS.finditer(statement):
        named = next((found for name, found in word.groupdict().items() if found is not None and name != "other"), None)
        if word["bare"] is not None and word[0].lower() in _OPERATORS:
            yield word[0].lower()
        if word["other"] == "(":
            if before and not is_list:
                yield before
            is_list = False  # the first is of the table's columns, or the index's
        if named is not None or word["other"] is not None or word[0].startswith("'"):  # a comment is nothing
            before = (named or "").lower()
