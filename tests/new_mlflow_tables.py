"""MLflow's tables in a new SQLite database, copied from those that MLflow made in another.

Its dozens of migrations take over two seconds of a core, for every workspace that registers a model. They are copied
only in forks of what `tests/forked_workers.py` has imported; a fresh process, such as the command of the first retrain
of `tests/e2e`, makes them by MLflow itself, and so does whoever finds any table there.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX = "sqlite:///"


def copy_tables_of(made: Path) -> None:
    """From now on, in this process and its forks.

    Args:
        made: where the database lies that is copied, or will by the first who asks.
    """
    import mlflow.store.db.utils
    import mlflow.store.model_registry.sqlalchemy_store

    initialize = mlflow.store.db.utils._initialize_tables

    def copy_or_initialize(engine: Any) -> None:
        url = str(engine.url)
        is_new = url.startswith(PREFIX) and mlflow.store.db.utils._is_empty_database(engine)
        if not is_new or not _copied(url.removeprefix(PREFIX), made, initialize):
            initialize(engine)

    for module in (mlflow.store.db.utils, mlflow.store.model_registry.sqlalchemy_store):
        module._initialize_tables = copy_or_initialize


def _copied(new: str, made: Path, initialize: Callable[[Any], None]) -> bool:
    """False where it cannot be written, say: then it is for MLflow to fail."""
    with contextlib.suppress(sqlite3.Error, OSError):
        with made.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _make(made, initialize)
        with contextlib.closing(sqlite3.connect(made)) as source, contextlib.closing(sqlite3.connect(new)) as target:
            source.backup(target)
        return True
    return False


def _make(made: Path, initialize: Callable[[Any], None]) -> None:
    from sqlalchemy import create_engine

    unfinished = made.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    engine = create_engine(f"{PREFIX}{unfinished}")
    initialize(engine)
    engine.dispose()
    unfinished.rename(made)
