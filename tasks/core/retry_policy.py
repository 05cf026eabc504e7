"""The one place that decides whether a stage is run again: by the cause of its error, never by its text.

Lost ranks are the supervisor's business and draw on its budget; here only the registry is retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from headway.data_contracts.store.errors import HeadwayError, RefConflict

R = TypeVar("R")
RETRY_DELAYS_S = (1.0, 5.0)


def retry_helps(error: BaseException) -> bool:
    # A lost race is no outage: the same decision would lose again, and has to be made anew on the new entry.
    return isinstance(error, HeadwayError) and error.retryable and not isinstance(error, RefConflict)


def is_transient(_task: Any, _task_run: Any, state: Any) -> bool:
    """Prefect's `retry_condition_fn`."""
    try:
        # Prefect hands over a state, not the error; the state raises what the task raised.
        state.result(raise_on_failure=True)
    except Exception as error:
        return retry_helps(error)
    return False


def retried(call: Callable[[], R]) -> R:
    """What Prefect's engine does for a task, where there is none."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return call()
        except Exception as error:
            if not retry_helps(error):
                raise
        time.sleep(delay_s)
    return call()
