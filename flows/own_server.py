"""Prefect's API for one command: the server that is configured, or one of the command's own.

Prefect would start an ephemeral server in our process group: Ctrl-C would end it first and leave us calling it in vain,
and a kill of ours would leave it behind. Under a keeper it hears no Ctrl-C, and ends when we do, however that comes.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flows.serve import Server, prefect_server, running, wait_until_ready
from training.launch.supervisor import free_port


@contextlib.contextmanager
def prefect_api() -> Iterator[None]:
    """While the body runs, Prefect has an API to talk to.

    Raises:
        EnvironmentProblem: the server of our own ends by itself or is not ready in time.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    server = _api_alone(prefect_server(free_port()))
    logs = Path(tempfile.mkdtemp(prefix="headway-prefect-"))
    keeping = contextlib.ExitStack()
    # Prefect sends its last events while the interpreter ends, so the server goes after that.
    atexit.register(keeping.close)
    wait_until_ready(server, keeping.enter_context(running(server, logs)), logs)
    keeping.callback(shutil.rmtree, logs, ignore_errors=True)
    with temporary_settings({PREFECT_API_URL: f"{server.url}/api"}):
        yield


def _api_alone(server: Server) -> Server:
    """Without pages, and without services for schedules and late runs."""
    return dataclasses.replace(server, command=(*server.command, "--no-services", "--no-ui"))
