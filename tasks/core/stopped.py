"""What is stopped and may continue has not failed: it completes, in Prefect, under a name that says so.

Whoever called it hears of the stop all the same: the stop is what a flow or a task returns, and is raised again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from headway.data_contracts.store.errors import RunStopped

if TYPE_CHECKING:
    from prefect import State

R = TypeVar("R")
STOPPED, WINDOW_CLOSED = "Stopped", "WindowClosed"


def stopped_state(stopped: RunStopped, name: str = "") -> State[RunStopped]:
    """What a flow or a task returns in place of `stopped`.

    Args:
        name: of the state; by its reason if empty.
    """
    from prefect.states import Completed

    by_reason = WINDOW_CLOSED if stopped.reason == "window closed" else STOPPED
    return Completed(name=name or by_reason, message=str(stopped), data=stopped)


def raised_if_stopped(returned: R | RunStopped | State[RunStopped]) -> R:
    """What a call to a flow or a task returned: a flow hands on what its state holds, a task the state.

    Raises:
        RunStopped: it was stopped.
    """
    from prefect import State

    made = returned.result() if isinstance(returned, State) else returned
    if isinstance(made, RunStopped):
        raise made
    return made
