"""The one place that decides whether Prefect runs a task again: by the cause of its error, never by its text.

Lost ranks are the supervisor's business and draw on its budget; here only the registry is retried.
"""

from __future__ import annotations

from typing import Any

from headway.data_contracts.store.errors import HeadwayError, RefConflict


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
