"""A flow beside detached runs: it has their jobs queued, or finds them, renews their leases, and turns their ends into
its own.

Who ends the flow decides about the jobs. A flow that merely dies (SIGKILL, a lost machine or worker, a closed terminal,
a defect) harms nothing: the next one finds them, and only if none comes for `lease_s` do they keep a checkpoint and
stop. A cancellation, SIGTERM or Ctrl-C is a person's wish, as `headway stop` is: they stop in order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from headway.data_contracts.store.errors import RunStopped
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.run_lock import owning
from headway.training.launch.base.steps import Ended, Tolerable, Turns
from headway.training.launch.jobs.follower import POLL_S, Follower
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.launch.jobs.scheduler import ArrayScheduler, Scheduler
from headway.training.observe.ledger import Event, Ledger

WORKER_LOST = "worker.lost"
"""The event that says that the flow is ended because its worker died, and by nobody's wish."""
Watched = tuple[Gang, Callable[[], int | None]]
"""A run, and what is to be called twice a second, so that people see how it goes."""


def follow(
    scheduler: Scheduler,
    spec: LaunchSpec,
    gang: Gang,
    *,
    ledger: Ledger,
    budget_scope: str,
    poll: Callable[[], int | None],
) -> None:
    """Have the gang run to its end as a job, and return when it is done. Call it in the main thread.

    Args:
        ledger: the flow's; what the job's supervisor records is taken over into it.
        poll: called twice a second, so that people see how it goes.

    Raises:
        RunStopped: the run's bound was reached, a stop was asked for, or somebody cancelled the job.
        EnvironmentProblem: the scheduler refused the job, cannot be asked, or another flow watches the run already.
        HeadwayError: whatever the supervisor raised, as `supervise` does.
    """
    follow_all(scheduler, spec, [(gang, poll)], ledger=ledger, budget_scope=budget_scope)


def follow_all(
    scheduler: Scheduler,
    spec: LaunchSpec,
    watched: Sequence[Watched],
    *,
    ledger: Ledger,
    budget_scope: str,
    at_once: int = 1,
    tolerable: Tolerable = lambda error: False,
    ended: Ended = lambda number, error: None,
) -> None:
    """Have several gangs of one shape run to their ends, as one array of jobs where the scheduler has such.

    Args:
        at_once: how many run at a time.
        tolerable: asked of what ended a run.
        ended: called as soon as a run is at its end, done or for a reason that is bearable; whatever it raises stops
            the others, in order, and is raised.

    Raises:
        RunStopped: one was stopped, and so are all.
        EnvironmentProblem, HeadwayError: as `follow`, of any that is not bearable; the others' jobs are left alone.
    """
    # All locks are taken before anything is queued: a second flow must not find half of the runs free.
    with contextlib.ExitStack() as owned:
        followers = []
        for gang, poll in watched:
            files = DetachedFiles(gang.run_dir)
            files.folder.mkdir(parents=True, exist_ok=True)
            owned.enter_context(owning(files.folder, gang.run_dir.name))
            followers.append(Follower(scheduler, spec, gang, ledger, budget_scope, poll, files))
        array = scheduler if isinstance(scheduler, ArrayScheduler) and len(followers) > 1 else None
        _Together(followers, ledger, at_once, tolerable, ended).run(array)


def _queue_as_array(scheduler: ArrayScheduler, followers: Sequence[Follower], ledger: Ledger, at_once: int) -> None:
    # Runs that have a job already keep it; only the others are queued together.
    new = [follower for follower in followers if not follower.is_there()]
    if len(new) < 2:
        return  # one alone is queued as any run is
    keys = scheduler.array_keys([follower.run_dir for follower in new])
    orders = [follower.write_order(key) for follower, key in zip(new, keys, strict=True)]
    with ledger.span("launch.submit"):
        # Keys are written down first: if this flow dies after the submission, the next finds the array by them.
        handles = scheduler.submit_array(orders, at_once)
    for follower, handle in zip(new, handles, strict=True):
        follower.is_queued_as(handle)


class _Together:
    """Takes turns among followers."""

    def __init__(
        self,
        followers: Sequence[Follower],
        ledger: Ledger,
        at_once: int,
        tolerable: Tolerable,
        ended: Ended,
    ) -> None:
        self._followers, self._ledger, self._at_once = followers, ledger, at_once
        self._turns = Turns(
            len(followers),
            begin=lambda number: followers[number].run(),
            has_room=lambda num_going: num_going < self._at_once,
            tolerable=tolerable,
            ended=ended,
            pause_s=POLL_S,
        )
        self._worker_is_lost = False

    def run(self, array: ArrayScheduler | None) -> None:
        """Args:
        array: where all are queued before any is watched.
        """
        self._ledger.listeners.append(self._listen)
        try:
            if array is not None:
                _queue_as_array(array, self._followers, self._ledger, self._at_once)
                # The bound is given to the scheduler once; a second bound here would leave elements unwatched.
                self._at_once = len(self._followers)  # the array keeps the bound
            self._turns.run()
        # A failure of one run leaves the others' jobs alone: the next flow finds them. A stop is meant for all, and
        # while the caller handles an end, its errors are its own.
        except Exception as failure:
            if self._turns.is_reporting or isinstance(failure, RunStopped):
                self._stop_in_order()
            raise
        # Ctrl-C and SIGTERM are wishes to stop; a lost worker is not, and its jobs are to outlive it.
        except BaseException as interrupt:
            if not self._worker_is_lost and not getattr(interrupt, "keeps_detached_runs", False):
                self._stop_in_order()
            raise
        finally:
            self._turns.close()
            self._ledger.listeners.remove(self._listen)

    def _listen(self, event: Event) -> None:
        self._worker_is_lost = self._worker_is_lost or event["event"] == WORKER_LOST

    def _stop_in_order(self) -> None:
        """All at once: a cancelled flow has little time."""
        numbers = (*self._turns.going, *self._turns.waiting)
        stopping = [self._followers[number].stop() for number in numbers]
        while stopping:
            stopping = [each for each in stopping if next(each, None) is not None]
            if stopping:
                time.sleep(POLL_S)
