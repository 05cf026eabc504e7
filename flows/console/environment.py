"""What Headway takes from the environment, and the settings of the tools it stands on: offline, quiet, patient.

HEADWAY_PROJECT    folder where relative pipeline files and the default workspace start; the current folder if unset
HEADWAY_WORKSPACE  folder or URI of the workspace; `workspace` in the project's folder if unset
HEADWAY_PROFILE    profile whose prices hold for a pipeline's cost_bound; the only one with prices if unset
HEADWAY_PUSHGATEWAY  where a flow run's last word goes when it ends; nowhere if unset
HEADWAY_PREFECT_RECORDS  1: a retrain is on record in PREFECT_HOME too where no server is configured
"""

from __future__ import annotations

import os
from pathlib import Path

from headway.flows.console.prefect_settings import leave_out_the_current_folder

DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The server counts sleeps, not seconds: its default of 20 fails on a busy machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Headway prints the one message a person needs; Prefect's tracebacks stay in its own log.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PUSHGATEWAY = "HEADWAY_PUSHGATEWAY"


def prepare() -> None:
    """Set what is not set; before Prefect or MLflow is imported. Yours win, but not what lies in the current folder."""
    # First: once Prefect is imported, it has read its settings from files there.
    leave_out_the_current_folder()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # A proxy would get the passwords of our own servers, and could answer for them.
    named = ",".join(os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    without = ",".join(dict.fromkeys(each for each in (*named, *LOOPBACK) if each))
    os.environ.update(no_proxy=without, NO_PROXY=without)


def project_folder() -> Path:
    return Path(os.environ.get("HEADWAY_PROJECT") or Path.cwd())


def default_workspace() -> str:
    return os.environ.get("HEADWAY_WORKSPACE") or str(project_folder() / "workspace")
