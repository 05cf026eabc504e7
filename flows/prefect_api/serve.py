"""`headway ui`: the Prefect server and the MLflow UI on loopback, until Ctrl-C. Neither outlives the command.

Loopback is every local user's, and every web page's that a browser of this machine shows. So both ask for a password;
Prefect's answers are for pages of its own alone, and what changes anything needs a token besides.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from headway.data_contracts.store.errors import EXIT_TERMINATED, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import open_to_write
from headway.flows.console.output import print_line, print_lines
from headway.flows.prefect_api.flow_run_claims import end_killed_flow_runs, killed_flow_runs
from headway.flows.prefect_api.listeners import require_own_listener
from headway.flows.prefect_api.server_password import USER, kept_password, password_file, private_folder
from headway.flows.prefect_api.server_process import ALONE
from headway.tasks.registry.mlflow_store import artifact_root, default_tracking_uri
from headway.tasks.serving import mlflow_app
from headway.training.launch.base.process_tree import sweep
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.node.reaper import reaped

LOOPBACK = "127.0.0.1"
READY_WITHIN_S = 180.0
STOP_WITHIN_S = 5.0
"""For an orderly end; then a server is killed."""
TOKEN = "HEADWAY_UI_TOKEN"
"""In the environment of a server and all it starts."""
LAST_LINES = 3
DOCTOR_ADVICE = "Run again; if it ends again, `headway doctor` looks at this installation."
UNASKED_OF_ONE_ALONE = ("PREFECT_SERVER_UI_ENABLED", "PREFECT_SERVER_ANALYTICS_ENABLED")
PRIVATE_UMASK = 0o077
"""Of the servers: their databases hold every run's parameters and logs, and Prefect's home may stand open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerProcess:
    name: str
    port: int
    option: str
    health: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    """The password is in it."""
    listener: socket.socket | None = field(default=None, repr=False)
    """What it is handed, and has its port already; None: it takes the port itself."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def serve(workspace_uri: str, prefect_port: int, mlflow_port: int) -> None:
    """Start both, say where to click and how to log in, and wait for Ctrl-C; should one end, the other continues.

    Raises:
        EnvironmentProblem: a port is taken, or a server is not ready in time; or, at the end, one ended by itself.
    """
    workspace = Workspace.create(workspace_uri)
    file = password_file()
    password = kept_password(file)
    prefect, mlflow = prefect_server(prefect_port, password), mlflow_server(workspace, mlflow_port, password)
    # MLflow takes its port by itself, and late: a port that is taken should be found before anything is started.
    listening(mlflow.name, mlflow.port, mlflow.option).close()
    # By default it ends Python without unwinding, and the servers would be the reaper's to end.
    signal.signal(signal.SIGTERM, _terminate)
    logs = workspace.local_path("ui")
    logs.mkdir(parents=True, exist_ok=True)
    ended: list[EnvironmentProblem] = []
    with contextlib.suppress(KeyboardInterrupt), running(prefect, logs) as one, running(mlflow, logs) as other:
        print_line("Starting the Prefect server and MLflow; the first start takes a minute.")
        for server, process in ((prefect, one), (mlflow, other)):
            wait_until_ready(server, process, logs)
        _end_killed_flow_runs(prefect, password)
        print_lines(where_to_click(prefect, mlflow, file))
        for problem in _ends(((prefect, one), (mlflow, other)), logs):
            ended.append(problem)  # before it is told: Ctrl-C may follow at once
            print_line(f"headway: {problem}", sys.stderr)
    if ended:
        whom = "itself" if len(ended) == 1 else "themselves"
        raise EnvironmentProblem(f"{len(ended)} of the two servers ended by {whom}, as was said when it happened.")


def _ends(started: Sequence[tuple[ServerProcess, subprocess.Popen[bytes]]], logs: Path) -> Iterator[EnvironmentProblem]:
    """How each ended by itself, as it happens, until all have."""
    going = list(started)
    while going:
        time.sleep(0.5)
        for server, process in [each for each in going if each[1].poll() is not None]:
            going.remove((server, process))
            note = " ".join(f"{other.name} keeps running." for other, _ in going)
            yield ended_by_itself(server, process, logs, note)


def _end_killed_flow_runs(prefect: ServerProcess, password: str) -> None:
    """Else whoever looks sees retrains as running that nobody runs any more."""
    if not killed_flow_runs():
        return  # Prefect's client costs seconds to load
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: f"{prefect.url}/api", PREFECT_API_AUTH_STRING: password}):
        end_killed_flow_runs()


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)


def where_to_click(prefect: ServerProcess, mlflow: ServerProcess, password: Path) -> str:
    shown = shlex.quote(str(password))
    return (
        f"\nPrefect  {prefect.url}/runs\nMLflow   {mlflow.url}/#/models\n\n"
        f"Both ask for a password: `cat {shown}` shows it, and nobody else may read it. Prefect,\n"
        "which says that authentication failed until then, takes the whole line, MLflow the user\n"
        f"{USER} and what follows the colon.\n\n"
        "Retrains are recorded there after:\n"
        f"  export PREFECT_API_URL={prefect.url}/api\n"
        f'  export PREFECT_API_AUTH_STRING="$(cat {shown})"\n\n'
        "Ctrl-C ends both."
    )


def prefect_server(port: int, password: str, *, is_alone: bool = False) -> ServerProcess:
    """From now on it has its port: nobody can take it while the server starts.

    Args:
        port: 0: any.
        password: `user:password`; Prefect's clients have it in PREFECT_API_AUTH_STRING.
        is_alone: without pages, and without services for schedules and late runs.

    Raises:
        EnvironmentProblem: the port cannot be had.
    """
    name, option = "Prefect", "--prefect-port"
    listener = listening(name, port, option)
    port = listener.getsockname()[1]
    url = f"http://{LOOPBACK}:{port}"
    module, descriptor = "headway.flows.prefect_api.server_process", str(listener.fileno())
    return ServerProcess(
        name=name,
        port=port,
        option=option,
        health="/api/health",
        command=(sys.executable, "-P", "-m", module, descriptor, *((ALONE,) if is_alone else ())),
        listener=listener,
        environment={
            # Pages and services talk to this server, whatever other one the shell or a profile names.
            "PREFECT_API_URL": f"{url}/api",
            "PREFECT_SERVER_UI_API_URL": f"{url}/api",
            "PREFECT_API_AUTH_STRING": password,
            "PREFECT_SERVER_API_AUTH_STRING": password,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": url,
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            **(dict.fromkeys(UNASKED_OF_ONE_ALONE, "false") if is_alone else {}),
        },
    )


def mlflow_server(workspace: Workspace, port: int, password: str) -> ServerProcess:
    """
    Args:
        password: `user:password`, for HTTP basic authentication.
    """
    store, files = default_tracking_uri(workspace), artifact_root(workspace)
    return ServerProcess(
        name="MLflow",
        port=port,
        option="--mlflow-port",
        health="/health",
        command=(
            *(
                sys.executable,
                "-P",
                "-m",
                "mlflow",
                "server",
                "--host",
                LOOPBACK,
                "--port",
                str(port),
                "--workers",
                "1",
            ),
            *("--backend-store-uri", store, "--default-artifact-root", files, "--app-name", "headway"),
        ),
        environment={
            # Without it MLflow starts seven more processes for jobs that nobody here has.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            # Its own host and pages, whatever the shell names.
            "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
            "MLFLOW_SERVER_ALLOWED_HOSTS": f"{LOOPBACK}:{port}",
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port}",
            mlflow_app.PASSWORD: password,
        },
    )


def listening(name: str, port: int, option: str) -> socket.socket:
    """A socket that listens on loopback.

    Raises:
        EnvironmentProblem: the port cannot be had; names the option that chooses another.
    """
    with contextlib.ExitStack() as on_failure:
        listener = on_failure.enter_context(socket.socket())
        # Else the kernel keeps the port for a minute after a server with open connections has ended.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            raise EnvironmentProblem(
                f"port {port} for {name} {'is taken' if taken else f'cannot be had ({error})'}.",
                where=LOOPBACK,
                advice=f"Choose another with {option}.",
            ) from error
        on_failure.pop_all()
    return listener


@contextlib.contextmanager
def running(server: ServerProcess, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is gone, with all it started, when the body ends, or soon after this process was killed."""
    token = secrets.token_hex(16)
    with reaped(TOKEN, token, STOP_WITHIN_S, terminate=True):
        with open_to_write(log_of(server, logs), "wb") as log:
            process = subprocess.Popen(
                server.command,
                # uvicorn imports from where it is started, whatever Python was told, and others may write there.
                cwd=private_folder(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Out of reach of the terminal's Ctrl-C: we need it to the end.
                start_new_session=True,
                env=os.environ | server.environment | {"PYTHONSAFEPATH": "1", TOKEN: token},
                umask=PRIVATE_UMASK,
                pass_fds=() if server.listener is None else (server.listener.fileno(),),
            )
        if server.listener is not None:
            # The child has its own copy; with ours the port would stay open after the child's end.
            server.listener.close()
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_WITHIN_S)
            # MLflow's server has processes of its own, which carry the token as well.
            sweep(TOKEN, token)
            process.wait()


def log_of(server: ServerProcess, logs: Path) -> Path:
    return logs / f"{server.name.lower()}.log"


def wait_until_ready(
    server: ServerProcess, process: subprocess.Popen[bytes], logs: Path, *, log_stays: bool = True
) -> None:
    """
    Args:
        log_stays: whether a person can read it afterwards.

    Raises:
        EnvironmentProblem: it ended, is not ready in time, or its port is another's.
    """
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ended_by_itself(server, process, logs, log_stays=log_stays)
        require_own_listener(server.url, server.name)  # else the password goes to whoever took the port
        with contextlib.suppress(OSError), urllib.request.urlopen(server.url + server.health, timeout=2):
            return
        time.sleep(0.2)
    raise EnvironmentProblem(
        f"{server.name} was not ready within {READY_WITHIN_S:.0f} s.",
        where=server.url,
        advice=f"Read {log_of(server, logs)}." if log_stays else DOCTOR_ADVICE,
    )


def ended_by_itself(
    server: ServerProcess, process: subprocess.Popen[bytes], logs: Path, note: str = "", *, log_stays: bool = True
) -> EnvironmentProblem:
    """
    Args:
        process: of the server; it has ended.
        note: what becomes of the others.
        log_stays: as for `wait_until_ready`.
    """
    log = log_of(server, logs)
    code = process.wait()
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    written = " | ".join(" ".join(line.split()) for line in last_lines(log, LAST_LINES))
    wrote = f"; it wrote last: {written}" if written else ""
    advice = " ".join(filter(None, (f"Read {log}." if log_stays else DOCTOR_ADVICE, note)))
    return EnvironmentProblem(f"{server.name} ended by itself ({how}){wrote}.", where=server.url, advice=advice)
