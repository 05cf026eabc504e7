"""`headway ui`: the Prefect server and the MLflow UI on loopback, until Ctrl-C. Neither outlives the command."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from data_contracts.errors import EnvironmentProblem
from data_contracts.publication import Workspace
from tasks.mlflow_store import artifact_root, default_tracking_uri

LOOPBACK = "127.0.0.1"
READY_WITHIN_S = 180.0
STOP_WITHIN_S = 15.0
PR_SET_PDEATHSIG = 1


def serve(workspace_uri: str, prefect_port: int, mlflow_port: int) -> None:
    """Start both, say where to click, and wait.

    Raises:
        EnvironmentProblem: a port is taken, or a server ends or is not ready in time.
    """
    workspace = Workspace.create(workspace_uri)
    for name, port, option in (("Prefect", prefect_port, "--prefect-port"), ("MLflow", mlflow_port, "--mlflow-port")):
        require_free(name, port, option)
    with server(prefect_command(prefect_port)) as prefect, server(mlflow_command(workspace, mlflow_port)) as mlflow:
        wait_until_ready("Prefect", prefect, f"http://{LOOPBACK}:{prefect_port}/api/health")
        wait_until_ready("MLflow", mlflow, f"http://{LOOPBACK}:{mlflow_port}/health")
        print(f"Prefect  http://{LOOPBACK}:{prefect_port}/runs")
        print(f"MLflow   http://{LOOPBACK}:{mlflow_port}/#/models")
        print(f"\nTo record retrains there: export PREFECT_API_URL=http://{LOOPBACK}:{prefect_port}/api")
        print("Ctrl-C ends both.", flush=True)
        while prefect.poll() is None and mlflow.poll() is None:
            time.sleep(0.5)
    raise EnvironmentProblem("a server ended by itself.", advice="Its last lines are above.")


def require_free(name: str, port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EnvironmentProblem(
                f"port {port} for {name} is taken.", where=LOOPBACK, advice=f"Choose another with {option}."
            ) from error


def prefect_command(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK, "--port", str(port)]


def mlflow_command(workspace: Workspace, port: int) -> list[str]:
    store = default_tracking_uri(workspace)
    return [
        *(sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", store, "--default-artifact-root", artifact_root(workspace)),
    ]


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a session of its own that ends with us, even when we are killed."""
    owner = os.getpid()

    def die_with_owner() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != owner:
            os._exit(1)

    environment = {
        **os.environ,
        # Without it MLflow starts seven more processes for jobs that nobody here has.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
        "PREFECT_API_URL": "",
    }
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_owner, env=environment
    )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole session, SIGKILL after the deadline."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
            return


def wait_until_ready(name: str, process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EnvironmentProblem(f"{name} ended while starting.", where=url, advice="Its last lines are above.")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    raise EnvironmentProblem(f"{name} was not ready within {READY_WITHIN_S:.0f} s.", where=url)
