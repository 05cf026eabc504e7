"""`headway ui`: the Prefect server and the MLflow UI on loopback, until Ctrl-C. Neither outlives the command."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from data_contracts.errors import EXIT_TERMINATED, EnvironmentProblem
from data_contracts.publication import Workspace
from flows.output import print_line, print_lines
from tasks.mlflow_store import artifact_root, default_tracking_uri
from training.launch.logs import last_lines
from training.launch.process_tree import sweep
from training.launch.reaper import reaped

LOOPBACK = "127.0.0.1"
READY_WITHIN_S = 180.0
STOP_WITHIN_S = 5.0
"""For an orderly end; then a server is killed."""
TOKEN = "HEADWAY_UI_TOKEN"
"""In the environment of a server and all it starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    name: str
    port: int
    option: str
    health: str
    command: tuple[str, ...]
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def serve(workspace_uri: str, prefect_port: int, mlflow_port: int) -> None:
    """Start both, say where to click, and wait for Ctrl-C.

    Raises:
        EnvironmentProblem: a port is taken, or a server ends by itself or is not ready in time.
    """
    workspace = Workspace.create(workspace_uri)
    prefect, mlflow = prefect_server(prefect_port), mlflow_server(workspace, mlflow_port)
    require_free(prefect, mlflow)
    signal.signal(signal.SIGTERM, _terminate)
    logs = workspace.local_path("ui")
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt), running(prefect, logs) as one, running(mlflow, logs) as other:
        print_line("Starting the Prefect server and MLflow; the first start takes a minute.")
        for server, process in ((prefect, one), (mlflow, other)):
            wait_until_ready(server, process, logs)
        print_lines(where_to_click(prefect, mlflow))
        while one.poll() is None and other.poll() is None:
            time.sleep(0.5)
        raise ended_by_itself(mlflow if one.poll() is None else prefect, logs)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_TERMINATED)


def where_to_click(prefect: Server, mlflow: Server) -> str:
    return (
        f"\nPrefect  {prefect.url}/runs\nMLflow   {mlflow.url}/#/models\n\n"
        f"Retrains are recorded there after: export PREFECT_API_URL={prefect.url}/api\n"
        "Ctrl-C ends both."
    )


def prefect_server(port: int) -> Server:
    api = f"http://{LOOPBACK}:{port}/api"
    return Server(
        name="Prefect",
        port=port,
        option="--prefect-port",
        health="/api/health",
        command=(sys.executable, "-m", "flows.prefect_cli", "server", "start", "--host", LOOPBACK, "--port", str(port)),
        # Pages and services talk to this server, whatever other one the shell or a profile names.
        environment={"PREFECT_API_URL": api, "PREFECT_SERVER_UI_API_URL": api},
    )


def mlflow_server(workspace: Workspace, port: int) -> Server:
    store, files = default_tracking_uri(workspace), artifact_root(workspace)
    return Server(
        name="MLflow",
        port=port,
        option="--mlflow-port",
        health="/health",
        command=(
            *(sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", store, "--default-artifact-root", files),
        ),
        # Without it MLflow starts seven more processes for jobs that nobody here has.
        environment={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


def require_free(*servers: Server) -> None:
    """Hold all ports at once for a moment.

    Raises:
        EnvironmentProblem: one cannot be had; names the option that chooses another.
    """
    with contextlib.ExitStack() as held:
        for server in servers:
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, server.port))
                probe.listen()
            except (OSError, OverflowError) as error:
                taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
                raise EnvironmentProblem(
                    f"port {server.port} for {server.name} {'is taken' if taken else f'cannot be had ({error})'}.",
                    where=LOOPBACK,
                    advice=f"Choose another with {server.option}.",
                ) from error


@contextlib.contextmanager
def running(server: Server, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that is gone, with all it started, when the body ends, or soon after this process was killed."""
    token = secrets.token_hex(16)
    with reaped(TOKEN, token, STOP_WITHIN_S, terminate=True):
        with log_of(server, logs).open("wb") as log:
            process = subprocess.Popen(
                server.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Out of reach of the terminal's Ctrl-C: we need it to the end.
                start_new_session=True,
                env=os.environ | server.environment | {"PYTHONSAFEPATH": "1", TOKEN: token},
            )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_WITHIN_S)
            sweep(TOKEN, token)
            process.wait()


def log_of(server: Server, logs: Path) -> Path:
    return logs / f"{server.name.lower()}.log"


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], logs: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ended_by_itself(server, logs)
        with contextlib.suppress(OSError), urllib.request.urlopen(server.url + server.health, timeout=2):
            return
        time.sleep(0.2)
    raise EnvironmentProblem(
        f"{server.name} was not ready within {READY_WITHIN_S:.0f} s.",
        where=server.url,
        advice=f"Read {log_of(server, logs)}.",
    )


def ended_by_itself(server: Server, logs: Path) -> EnvironmentProblem:
    log = log_of(server, logs)
    said = " ".join(last_lines(log, 1))
    return EnvironmentProblem(
        f"{server.name} ended by itself{f': {said}' if said else ''}.", where=server.url, advice=f"Read {log}."
    )
