"""Prefect's API for one command: the server that is configured, or one of the command's own.

Prefect would start an ephemeral server in our process group: Ctrl-C would end it first and leave us calling it in vain,
and a kill of ours would leave it behind. This one hears no Ctrl-C, and ends when we do, however that comes. Its
password is drawn for it, and known to this process and the server's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import http.client
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator

from data_contracts.errors import EnvironmentProblem
from data_contracts.full_disk import naming_a_full_disk
from data_contracts.leftovers import scratch_folder
from flows.flow_run_claims import end_killed_flow_runs, holding_flow_runs
from flows.listeners import require_own_listener
from flows.open_server import is_known
from flows.serve import Server, prefect_server, running, wait_until_ready
from flows.server_password import is_of_headway_ui, new_password
from tasks import mlflow_store
from training.launch.ports import free_port

ANSWER_WITHIN_S = 15.0
HEALTHY = b"true"
ASKED_WHO = (401, 403)


@contextlib.contextmanager
def prefect_api(*, of_its_own: bool = False) -> Iterator[None]:
    """While the body runs, Prefect has an API to talk to.

    Args:
        of_its_own: also where a server is configured, which hears of nothing then.

    Raises:
        EnvironmentProblem: the configured server does not answer, or our own is not ready in time.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    if (configured := PREFECT_API_URL.value()) and not of_its_own:
        require_answer(configured, advice="or unset it to run with a server of the command's own.")
        end_killed_flow_runs()
        with holding_flow_runs():
            yield
        return
    password = new_password()
    server = _api_alone(prefect_server(free_port(), password))
    keeping = contextlib.ExitStack()
    # Prefect sends its last events while the interpreter ends, so the server goes after that.
    atexit.register(keeping.close)
    with naming_a_full_disk(tempfile.gettempdir()):
        logs = keeping.enter_context(scratch_folder("headway-prefect-"))
        process = keeping.enter_context(running(server, logs))
        mlflow_store.load()  # which every flow needs, while this process has nothing else to do
        wait_until_ready(server, process, logs)
    with temporary_settings({PREFECT_API_URL: f"{server.url}/api", PREFECT_API_AUTH_STRING: password}):
        end_killed_flow_runs()
        with holding_flow_runs():
            yield


def require_answer(api_url: str, advice: str = "") -> None:
    """Raises `EnvironmentProblem` unless Prefect's API is there and lets us in: Prefect would try for minutes."""
    said = b""
    try:
        with urllib.request.urlopen(f"{api_url.rstrip('/')}/health", timeout=ANSWER_WITHIN_S) as answer:
            said = answer.read(len(HEALTHY) + 1)
        problem = "" if said == HEALTHY else "what answers is not Prefect's API."
    except urllib.error.HTTPError as error:
        # Asked who we are: somebody is there, and Prefect knows the credentials.
        problem = "" if error.code in ASKED_WHO else f"what answers is not Prefect's API ({error})."
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem = f"the Prefect server does not answer ({getattr(error, 'reason', error)})."
    if problem:
        raise EnvironmentProblem(
            problem,
            where=api_url,
            advice="Start it, or let PREFECT_API_URL name another (such as http://127.0.0.1:4200/api)"
            + (f", {advice}" if advice else "."),
        )
    if said == HEALTHY:
        _require_known(api_url)


def _require_known(api_url: str) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY

    password = str(PREFECT_API_AUTH_STRING.value() or "")
    if is_of_headway_ui(password):
        require_own_listener(api_url, "Prefect")
    if (PREFECT_API_KEY.value() and not password) or is_known(api_url, password):
        return
    raise EnvironmentProblem(
        f"the Prefect server asks for {'another' if password else 'a'} password.",
        where=api_url,
        advice="Let PREFECT_API_AUTH_STRING have it, as user:password; that of `headway ui` is in the file that it "
        "names when it starts.",
    )


def _api_alone(server: Server) -> Server:
    """Without pages, and without services for schedules and late runs."""
    return dataclasses.replace(server, command=(*server.command, "--no-services", "--no-ui"))
