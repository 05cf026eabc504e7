"""What is stopped and may continue has not failed: it completes, in Prefect, under a name that says so.

Whoever called it hears of the stop all the same: the stop is what a flow or a task returns, and is raised again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from headway.data_contracts.store.errors import RunStopped, StopReason

if TYPE_CHECKING:
    from prefect import State

R = TypeVar("R")
STOPPED, WINDOW_CLOSED, COST_BOUND_REACHED = "Stopped", "WindowClosed", "CostBoundReached"
_BY_REASON: Mapping[StopReason | None, str] = {
    "window closed": WINDOW_CLOSED,
    "cost bound reached": COST_BOUND_REACHED,
}


def stopped_state(stopped: RunStopped, name: str = "") -> State[RunStopped]:
    """What a flow or a task returns in place of `stopped`.

    Args:
        name: of the state; by its reason if empty.
    """
    from prefect.states import Completed

    return Completed(name=name or name_of(stopped.reason), message=str(stopped), data=stopped)


def name_of(reason: StopReason | None) -> str:
    """Of the state of what was stopped for it."""
    return _BY_REASON.get(reason, STOPPED)


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
