"""Databases of SQLite that others may have written: files and no pipes, of tables that compute nothing when they are
read. Standard library only.

A view may select without end, and a generated column hold a thread in one call that no deadline of ours ends. Triggers
and columns that are generated as rows are written are left alone: MLflow has some, and reading computes neither.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from headway.data_contracts.store.regular_files import require_regular

BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite opens next to a database, where it lies there."""
BUSY_S = 5.0
# Columns of 2 are generated when they are read, of 3 when they are written.
_COMPUTED = """
select type || ' ' || name from sqlite_schema where type = 'view' or sql like 'create virtual%'
union all
select 'generated column ' || schema.name || '.' || its.name
from sqlite_schema as schema, pragma_table_xinfo(schema.name) as its where schema.type = 'table' and its.hidden = 2
limit 1
"""


@contextlib.contextmanager
def plain_database(file: Path, mode: Literal["ro", "rw"] = "ro") -> Iterator[sqlite3.Connection]:
    """
    Args:
        mode: one that was written to when its writer was killed is put in order by `rw` alone.

    Raises:
        OSError: it is missing; it, or what lies beside it under a name that SQLite would open, is no regular file.
        ValueError: something in it would be computed; it is named.
        sqlite3.Error: it cannot be read.
    """
    require_regular(file, file.stat())
    for beside in (Path(f"{file}{ending}") for ending in BESIDE):
        if beside.exists():
            require_regular(beside, beside.stat())
    with contextlib.closing(
        sqlite3.connect(f"file:{quote(str(file))}?mode={mode}", uri=True, timeout=BUSY_S)
    ) as connection:
        for (what,) in connection.execute(_COMPUTED).fetchall():
            raise ValueError(f"it has the {what}, which would be computed when it is read")
        yield connection
