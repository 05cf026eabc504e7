"""Settings of the tools Headway stands on, made before they are imported: offline, quiet, patient. Yours win."""

from __future__ import annotations

import os

DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The server counts sleeps, not seconds: its default of 20 fails on a busy machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Headway prints the one message a person needs; Prefect's tracebacks stay in its own log.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASSISTANT": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def prepare() -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
