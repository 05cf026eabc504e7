"""One Prefect server for the flows of all test processes: each more would cost six seconds of a core, and its idling.

Whoever asks first starts its keeper, which ends it when the first test process, the parent of the others, is gone:
`python -m tests.shared_prefect FIRST_PID`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from headway.flows.prefect_api.serve import prefect_server, running, wait_until_ready
from headway.flows.prefect_api.server_password import new_password
from tests.prefect_tables import new_prefect_home
from tests.waiting import wait_until
from tests.warm_programs import Program

UNASKED_SERVICES = (
    *("SCHEDULER", "LATE_RUNS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "FOREMAN", "REPOSSESSOR", "DB_VACUUM"),
    *("EVENT_LOGGER", "EVENT_PERSISTER", "TRIGGERS"),
)
"""They look around, and at every event, for nobody: flows in a test's own process only need task runs recorded."""


class Api(NamedTuple):
    """Where a server answers, and with what it lets one in."""

    url: str
    password: str

    @property
    def settings(self) -> dict[str, str]:
        """As a user's environment has them."""
        return {"PREFECT_API_URL": self.url, "PREFECT_API_AUTH_STRING": self.password}


def api() -> Api:
    """The server, which is started when nobody has asked before."""
    shared = Path(os.environ["HEADWAY_TESTS_SHARED"])
    url, log = shared / "prefect.url", shared / "prefect-keeper.log"
    with (shared / "prefect-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not url.is_file():
            with log.open("wb") as stream:
                keeper = Program(
                    [sys.executable, "-m", "tests.shared_prefect", os.environ["HEADWAY_TESTS_FIRST"]],
                    cwd=Path(__file__).resolve().parents[1],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    start_new_session=True,
                )
            wait_until(lambda: url.is_file() or keeper.poll() is not None, what="the shared Prefect server")
    assert url.is_file(), log.read_text()
    return Api(*url.read_text().split())


def keep(first_pid: int) -> None:
    first = os.pidfd_open(first_pid)
    password = new_password()
    server = prefect_server(0, password)
    with tempfile.TemporaryDirectory(prefix="headway-tests-") as kept:
        folder = Path(kept)
        environment = {
            **server.environment,
            "PREFECT_HOME": str(new_prefect_home(folder / "home")),
            "PREFECT_SERVER_UI_ENABLED": "false",
            **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in UNASKED_SERVICES},
        }
        server = dataclasses.replace(server, environment=environment)
        with running(server, folder) as process:
            wait_until_ready(server, process, folder)
            told = Path(os.environ["HEADWAY_TESTS_SHARED"]) / "prefect.url"
            (folder / "url").write_text(f"{server.url}/api {password}")
            (folder / "url").rename(told)
            select.select([first, os.pidfd_open(process.pid)], [], [])
            told.unlink(missing_ok=True)  # of one that fell, another is started


if __name__ == "__main__":
    keep(int(sys.argv[1]))
