"""What happens, as log lines of the flow run: who opens its page in Prefect reads there what a terminal shows."""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from headway.data_contracts.store.errors import HeadwayError
from headway.flows.report.failure_card import FailureCard, markdown
from headway.flows.report.terminal import Rate, notice_line, step_line, validation_line
from headway.tasks.core.flow_run import current_flow_run
from headway.training.observe.ledger import Event, Listener

STEP_EVERY_S = 60.0
"""Every line is a row of the server's database."""


OF_PREFECT = ("prefect.flow_runs", "prefect.task_runs")


class WithoutTraceback(logging.Filter):
    """Of a refusal its words say all; two hundred lines of Prefect's own frames would hide them.

    What another error led to, or has more to tell in its notes, and whatever is no error of ours keeps its traceback.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HeadwayError) and error.__cause__ is None and not hasattr(error, "__notes__"):
            record.exc_info = None
        return True


WITHOUT_TRACEBACK = WithoutTraceback()


def run_log() -> tuple[Listener, ...]:
    """None outside of a flow run."""
    if current_flow_run() is None:
        return ()
    for name in OF_PREFECT:
        logging.getLogger(name).addFilter(WITHOUT_TRACEBACK)
    return (RunLog(),)


class RunLog:
    """A ledger listener."""

    def __init__(self) -> None:
        from prefect.logging import get_run_logger

        self._log, self._rates, self._logged_s = get_run_logger(), defaultdict[str, Rate](Rate), 0.0

    def __call__(self, event: Event) -> None:
        if event["event"] == "step":
            self._step(event)
        elif event["event"] == "validation" and "value" in event:
            self._log.info("%s", validation_line(event))
        elif event["event"] == "flow.card":
            self._log.error("%s", markdown(FailureCard.model_validate(event)))
        elif line := notice_line(event):
            self._log.info("%s", line)

    def _step(self, event: Event) -> None:
        line = step_line(event, *self._rates[event.get("trial") or ""].update(event))
        # The last step is logged whenever it comes.
        if time.monotonic() - self._logged_s >= STEP_EVERY_S or event["step"] == event.get("max_steps"):
            self._log.info("%s", line)
            self._logged_s = time.monotonic()
