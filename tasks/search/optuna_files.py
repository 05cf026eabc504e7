"""Studies of Optuna's as files: in a journal, or in a database of SQLite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

SQLITE_MAGIC: Final = b"SQLite format 3\0"
SQLITE_ENDINGS: Final = (".db", ".sqlite", ".sqlite3")


@contextlib.contextmanager
def study_storage(file: Path, *, is_sqlite: bool) -> Iterator[BaseStorage]:
    """What Optuna keeps studies in there; once left, the file is whole."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not is_sqlite:
        yield JournalStorage(JournalFileBackend(str(file)))
        return
    storage = RDBStorage(f"sqlite:///{file}")
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()
