"""Prefect's API for one command: the server that is configured, or one of the command's own.

Prefect would start an ephemeral server in our process group: Ctrl-C would end it first and leave us calling it in vain,
and a kill of ours would leave it behind. This one hears no Ctrl-C, and ends when we do, however that comes. Its
password is drawn for it, and known to this process and the server's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from headway.data_contracts.store.credentials import credential_in_uri
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.full_disk import as_full_disk, naming_a_full_disk
from headway.data_contracts.store.leftovers import scratch_folder
from headway.flows.prefect_api.flow_run_claims import end_killed_flow_runs, holding_flow_runs
from headway.flows.prefect_api.listeners import require_own_listener
from headway.flows.prefect_api.serve import prefect_server, running, wait_until_ready
from headway.flows.prefect_api.server_auth import is_known, is_prefect_server
from headway.flows.prefect_api.server_password import is_of_headway_ui, new_password

ANSWER_WITHIN_S = 15.0
HEALTHY = b"true"
NOT_PREFECT = "what answers is not Prefect's API."
UNAUTHORIZED = (401, 403)


@contextlib.contextmanager
def prefect_api(*, is_ephemeral: bool = False) -> Iterator[None]:
    """While the body runs, Prefect has an API to talk to.

    Args:
        is_ephemeral: also where a server is configured, which hears of nothing then.

    Raises:
        EnvironmentProblem: the configured server does not answer, or not as Prefect does; or our own is not ready in
            time.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    if (configured := PREFECT_API_URL.value()) and not is_ephemeral:
        require_answer(configured, advice="or unset it to run with a server of the command's own.")
        end_killed_flow_runs()
        from headway.flows.prefect_api.foreign_answers import naming_foreign_answers

        with holding_flow_runs(), naming_foreign_answers(configured):
            yield
        return
    own = _own_server()
    with temporary_settings({PREFECT_API_URL: f"{own.url}/api", PREFECT_API_AUTH_STRING: own.password}):
        end_killed_flow_runs()
        with holding_flow_runs():
            yield


@dataclass(frozen=True, slots=True)
class _OwnServer:
    url: str
    password: str
    process: subprocess.Popen[bytes]


_started: list[_OwnServer] = []


def _own_server() -> _OwnServer:
    """The server of this process, for all its flows, until the interpreter ends."""
    for own in _started:
        # One that died is replaced: a program may retrain for days.
        if own.process.poll() is None:
            return own
    require_home()
    password = new_password()
    server = prefect_server(0, password, is_alone=True)
    keeping = contextlib.ExitStack()
    # Prefect sends its last events while the interpreter ends, so the server goes after that.
    atexit.register(keeping.close)
    with naming_a_full_disk(tempfile.gettempdir()):
        logs = keeping.enter_context(scratch_folder("headway-prefect-"))
        process = keeping.enter_context(running(server, logs))
        wait_until_ready(server, process, logs, log_stays=False)
    _started.append(_OwnServer(server.url, password, process))
    return _started[-1]


def require_home() -> None:
    """Raises `EnvironmentProblem` unless a server of our own can keep its database: it would end without a word why."""
    from prefect.settings import PREFECT_HOME

    home = PREFECT_HOME.value().expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        if (full := as_full_disk(error, str(home))) is not None:
            raise full from error
        raise EnvironmentProblem(
            f"PREFECT_HOME cannot be written ({error.strerror}).",
            where=str(home),
            advice="Let it name a folder that you may write in.",
        ) from error


def require_answer(api_url: str, advice: str = "") -> None:
    """Raises `EnvironmentProblem` unless Prefect's API is there and lets us in: Prefect would try for minutes."""
    if found := credential_in_uri(api_url):
        raise EnvironmentProblem(
            f"the Prefect server's address holds {found}, and addresses are shown.",
            where="PREFECT_API_URL",
            advice="Leave it out there, and let PREFECT_API_AUTH_STRING have it, as user:password.",
        )
    message = b""
    try:
        with urllib.request.urlopen(f"{api_url.rstrip('/')}/health", timeout=ANSWER_WITHIN_S) as answer:
            # One byte more shows that it is another answer, and whoever gives it may never end.
            message = answer.read(len(HEALTHY) + 1)
        problem = "" if message == HEALTHY else NOT_PREFECT
    except urllib.error.HTTPError as error:
        # Asked who we are: somebody is there, and Prefect knows the credentials.
        problem = "" if error.code in UNAUTHORIZED else f"what answers is not Prefect's API ({error})."
    except (OSError, ValueError, http.client.HTTPException) as error:
        problem = f"the Prefect server does not answer ({getattr(error, 'reason', error)})."
    if not problem and message == HEALTHY:
        password = _require_known(api_url)
        problem = "" if is_prefect_server(api_url, password) else NOT_PREFECT
    if problem:
        raise EnvironmentProblem(
            problem,
            where=api_url,
            advice="Start it, or let PREFECT_API_URL name another (such as http://127.0.0.1:4200/api)"
            + (f", {advice}" if advice else "."),
        )


def _require_known(api_url: str) -> str:
    """Returns: the password that it knows; empty where there is none."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY

    password = str(PREFECT_API_AUTH_STRING.value() or "")
    if is_of_headway_ui(password):
        require_own_listener(api_url, "Prefect")
    if (PREFECT_API_KEY.value() and not password) or is_known(api_url, password):
        return password
    raise EnvironmentProblem(
        f"the Prefect server asks for {'another' if password else 'a'} password.",
        where=api_url,
        advice="Let PREFECT_API_AUTH_STRING have it, as user:password; that of `headway ui` is in the file that it "
        "names when it starts.",
    )
