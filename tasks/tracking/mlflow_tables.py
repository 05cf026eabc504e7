"""What an SQLite database of MLflow's says of a model's versions, read without MLflow: to import it takes three seconds
of a processor, and a retrain that finds every stage only has to see that nothing was changed.

Tables of the one revision are read that MLflow, as pinned, makes; a test holds the answers against MLflow's own.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.tables.sqlite_files import plain_database

REVISION = "dc11669786a5"
"""Of the tables, by Alembic."""
TRIGGERS = (
    """CREATE TRIGGER prevent_secrets_aad_mutation
BEFORE UPDATE ON secrets
FOR EACH ROW
WHEN OLD.secret_id != NEW.secret_id OR OLD.secret_name != NEW.secret_name
BEGIN
    SELECT RAISE(ABORT, 'secret_id and secret_name are immutable (used as AAD in encryption)');
END""",
)
"""MLflow's own, as it makes them."""
WORKSPACE = "default"
"""Of MLflow's own kind, which a server may have several of."""
DELETED = "Deleted_Internal"


class StoredVersion(NamedTuple):
    run_id: str
    description: str
    tags: dict[str, str]


class MlflowTables:
    """Raises `sqlite3.Error` where the database cannot be read."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def version(self, model: str, number: str) -> StoredVersion | None:
        """None: there is none of that number."""
        key = (WORKSPACE, model, int(number))
        where = "where workspace = ? and name = ? and version = ?"
        row = self._database.execute(
            f"select run_id, description from model_versions {where} and current_stage <> ?", (*key, DELETED)
        ).fetchone()
        if row is None:
            return None
        tags = self._database.execute(f"select key, value from model_version_tags {where}", key)
        return StoredVersion(row[0] or "", row[1] or "", dict(tags.fetchall()))

    def alias(self, model: str, alias: str) -> str | None:
        """The version that has it; None where none has."""
        row = self._database.execute(
            "select version from registered_model_aliases where workspace = ? and name = ? and alias = ?",
            (WORKSPACE, model, alias),
        ).fetchone()
        return None if row is None else str(row[0])

    def files_of(self, experiment: str) -> str | None:
        """Where the files of its runs lie; None where there is no such experiment."""
        row = self._database.execute(
            "select artifact_location from experiments where workspace = ? and name = ?", (WORKSPACE, experiment)
        ).fetchone()
        return None if row is None else str(row[0])


@contextlib.contextmanager
def mlflow_tables(database: Path | None) -> Iterator[MlflowTables | None]:
    """The tables of a store, while the body runs; None where they are not there, or of another revision."""
    with contextlib.ExitStack() as stack:
        yield None if database is None else _open(database, stack)


def _open(database: Path, stack: contextlib.ExitStack) -> MlflowTables | None:
    try:
        # For reading: a database that is not there stays so, and one of another user's needs no right to write.
        connection = stack.enter_context(plain_database(database))
        revisions = connection.execute("select version_num from alembic_version").fetchall()
    except (OSError, ValueError, sqlite3.Error):
        return None
    return MlflowTables(connection) if revisions == [(REVISION,)] else None
