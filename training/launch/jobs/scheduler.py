"""What a scheduler must be able to do that keeps detached runs as its jobs, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, runtime_checkable

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.jobs.job_request import JobHandle, JobRequest


class SchedulerSilent(EnvironmentProblem):
    """It cannot be reached, for now; what was asked of it may have been received all the same."""


class JobState(Enum):
    PENDING = "pending"
    RUNNING = "running"
    """Or just starting, or ending: its outcome is still to come."""
    PREEMPTED = "preempted"
    """Ended by the scheduler or a machine, not by what it ran: another job may go on."""
    CANCELLED = "cancelled"
    """By somebody's wish."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The scheduler gives no answer; says nothing about the job."""
    FORGOTTEN = "forgotten"
    """The scheduler answers, and knows no such job."""

    @property
    def has_ended(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    state: JobState
    reason: str = ""
    """In the scheduler's words."""
    restarts: int = 0
    """How often the scheduler started it again."""


def run_key(run_dir: Path) -> str:
    """The same for whoever asks; another for a run of the same name in another workspace."""
    # By the resolved path: two workspaces may hold runs of one name, since a run's name is a digest of its inputs.
    place = sha256_bytes(str(run_dir.resolve()).encode())[:12]
    return f"headway-{run_dir.name[:16]}-{place}"


class Scheduler(Protocol):
    """Nothing here waits for a job; every call has a deadline, and raises `EnvironmentProblem` past it."""

    name: str

    def key(self, run_dir: Path) -> str:
        """By which a run's job is known; the same for whoever asks."""

    def render(self, order: JobRequest, now_unix_s: float) -> str:
        """What would be submitted; pure."""

    def find(self, key: str) -> str | None:
        """The living job under the key, if there is one."""

    def submit(self, order: JobRequest) -> JobHandle:
        """Queue a job, unless a living one is found under the run's key: then that."""

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        """How the job fares; raises nothing: no answer is `UNKNOWN`.

        Args:
            since_s: by the monotonic clock; what the scheduler said before of this job and others together is too old.
        """

    def log_tail(self, handle: JobHandle, lines: int) -> list[str]:
        """What the job's own process wrote last, or what else is known of why it wrote nothing."""

    def dry_run(self, spec: LaunchSpec, gang: Gang) -> None:
        """Have the run's job looked at without queueing it.

        Raises:
            EnvironmentProblem: it would be refused, in the scheduler's words, or the scheduler cannot be asked.
        """

    def cancel(self, handle: JobHandle) -> None:
        """End the job, in whatever state."""


@runtime_checkable
class ArrayScheduler(Scheduler, Protocol):
    """One that holds many runs of one shape as a single job of many elements, each with a handle of its own."""

    def array_keys(self, run_dirs: Sequence[Path]) -> list[str]:
        """By which the elements are found that are to run these; the same for whoever asks for the same runs."""

    def submit_array(self, orders: Sequence[JobRequest], at_once: int) -> list[JobHandle]:
        """Queue an array, unless a living one of these runs is found; handles in the orders' order.

        Args:
            at_once: how many elements may run at a time.
        """
