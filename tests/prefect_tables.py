"""A home for Prefect whose database has its tables: to make them takes four seconds of a core for every new server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import sys
from pathlib import Path

from tests.waiting import DEADLINE_S
from tests.warm_programs import run_program

DATABASE = "prefect.db"


def new_prefect_home(home: Path) -> Path:
    """Make the folder, with a copy of the tables that the tests' first caller makes for all of their processes."""
    shared = Path(os.environ["HEADWAY_TESTS_SHARED"])
    with (shared / "prefect.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / DATABASE).is_file():
            _make_tables(shared / "prefect-home")
            (shared / "prefect-home" / DATABASE).rename(shared / DATABASE)
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(shared / DATABASE, home / DATABASE)
    return home


def _make_tables(home: Path) -> None:
    home.mkdir(exist_ok=True)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
    run_program(command, env=ours | {"PREFECT_HOME": str(home)}, check=True, timeout=DEADLINE_S)
    with contextlib.closing(sqlite3.connect(home / DATABASE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # a log beside the file would not come along with a copy
