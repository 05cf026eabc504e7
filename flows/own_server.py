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
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from data_contracts.errors import EnvironmentProblem
from flows.serve import Server, prefect_server, running, wait_until_ready
from training.launch.supervisor import free_port

ANSWER_WITHIN_S = 15.0


@contextlib.contextmanager
def prefect_api() -> Iterator[None]:
    """While the body runs, Prefect has an API to talk to.

    Raises:
        EnvironmentProblem: the configured server does not answer, or our own is not ready in time.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if configured := PREFECT_API_URL.value():
        _require_answer(configured)
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


def _require_answer(api_url: str) -> None:
    """Raises `EnvironmentProblem` when nobody is there: Prefect would retry for minutes."""
    try:
        urllib.request.urlopen(f"{api_url}/health", timeout=ANSWER_WITHIN_S).close()
    except urllib.error.HTTPError:
        return  # it asks who we are: somebody is there, and Prefect knows the credentials
    except OSError as error:
        raise EnvironmentProblem(
            f"the Prefect server does not answer ({getattr(error, 'reason', error)}).",
            where=api_url,
            advice="Start it, or unset PREFECT_API_URL to run with a server of the command's own.",
        ) from error


def _api_alone(server: Server) -> Server:
    """Without pages, and without services for schedules and late runs."""
    return dataclasses.replace(server, command=(*server.command, "--no-services", "--no-ui"))
