"""What the supervisor of a detached run must know of the job that it runs in, whichever the scheduler is."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from headway.training.launch.base.gang import Gang, LaunchSpec


class StartState(Enum):
    """Of one start of a job, as its own processes ask."""

    RUNNING = "running"
    ENDING = "being ended, or queued again"
    ENDED = "over, or started anew elsewhere"
    UNKNOWN = "out of reach of the scheduler"

    @property
    def is_over(self) -> bool:
        return self in (StartState.ENDING, StartState.ENDED)


class JobStart(Protocol):
    """One start of a job, from within."""

    scheduler: str
    job: str
    restarts: int
    """How many starts went before it."""
    left_status: int
    """What the supervisor exits with where another start is to go on."""

    def where(self) -> str:
        """The machines, for people."""

    def limit(self, gang: Gang, spec: LaunchSpec) -> None:
        """Have a job that just started end with the run's bound, however long it waited in the queue."""

    def state(self) -> StartState: ...

    def is_draining(self) -> bool:
        """Whether a machine must go, other than the supervisor's, that was not told of before."""

    def make_room(self) -> None:
        """See that another start of the job goes on, once a checkpoint is kept.

        Raises:
            EnvironmentProblem: none will.
        """
