"""A flow run's last act: its trace goes to the collector that the environment names, if it names one.

It is bounded in time, and fails nothing: what a retrain came to does not depend on who watches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from headway.data_contracts.store.publication import Workspace
from headway.flows.console.last_act import problem_within

WITHIN_S = 5.0
MAX_LEDGER_BYTES = 512 << 20
"""Of ranks, to be read for it; takes a second or two."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an endpoint is set, and nothing switches it off."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    return not is_off and "otlp" in exporters.split(",") and any(environ.get(name, "").strip() for name in ENDPOINTS)


def export_quietly(workspace: Workspace, flow_run: str, environ: Mapping[str, str] = os.environ) -> None:
    """Send the trace of a flow run that is over, and of the one before it where that was killed.

    What is in the way is logged in one sentence.
    """
    if not is_wanted(environ):
        return
    problem = problem_within(WITHIN_S, lambda: _export(workspace, flow_run, environ), "trace-export")
    if problem:
        logging.getLogger(__name__).warning(
            "The trace of flow run %s was not sent: %s. `headway trace %s --otlp` sends it.",
            flow_run,
            problem,
            flow_run,
        )


def _export(workspace: Workspace, flow_run: str, environ: Mapping[str, str]) -> None:
    # Only here: what it needs takes time to import, and most flow runs have no collector.
    from headway.flows.tracing.otlp import Endpoint, send
    from headway.flows.tracing.read_trace import killed_before, read_trace

    endpoint = Endpoint.from_environment(environ)
    for each in filter(None, (flow_run, killed_before(workspace, flow_run))):
        trace = read_trace(workspace, each, MAX_LEDGER_BYTES)
        if trace is not None and trace.is_sampled:
            send(trace, endpoint, WITHIN_S, environ)
