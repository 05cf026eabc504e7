"""What happens, as log lines of the flow run: who opens its page in Prefect reads there what a terminal shows."""

from __future__ import annotations

import time
from collections import defaultdict

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger

from flows.terminal import Rate, step_line, told_line
from training.ledger import Event, Listener

STEP_EVERY_S = 60.0
"""Every line is a row of the server's database."""


def run_log() -> tuple[Listener, ...]:
    """None outside of a flow run."""
    return () if FlowRunContext.get() is None else (RunLog(),)


class RunLog:
    """A ledger listener."""

    def __init__(self) -> None:
        self._log, self._rates, self._told_s = get_run_logger(), defaultdict[str, Rate](Rate), 0.0

    def __call__(self, event: Event) -> None:
        if event["event"] == "step":
            self._step(event)
        elif line := told_line(event):
            self._log.info("%s", line)

    def _step(self, event: Event) -> None:
        line = step_line(event, *self._rates[event.get("trial", "")].update(event))
        if time.monotonic() - self._told_s >= STEP_EVERY_S or event["step"] == event.get("max_steps"):
            self._log.info("%s", line)
            self._told_s = time.monotonic()
