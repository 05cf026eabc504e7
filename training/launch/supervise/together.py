"""Gangs that train side by side under one owner: a supervisor for each, all in the owner's main thread."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headway.data_contracts.store.errors import HeadwayError, RanksLost
from headway.training.launch.base.gang import Gang
from headway.training.launch.base.steps import Ended, Steps, Tolerable, Turns
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.diagnosis.outcome import AttemptOutcome
from headway.training.launch.supervise.room import Room, Slot
from headway.training.launch.supervise.step_pace import StepPaces
from headway.training.launch.supervise.supervisor import supervising
from headway.training.launch.supervise.watch import Beside
from headway.training.observe.ledger import Ledger

PAUSE_S = 0.1
Poll = Callable[[], int | None]
Begin = Callable[[int], tuple[Gang, Poll] | None]
"""The gang of a run, by its number from 0, and what is called often while it trains; None: it has ended already."""


def supervise_all(
    room: Room,
    num: int,
    begin: Begin,
    *,
    ledger: Ledger,
    budget_scope: str,
    tolerable: Tolerable,
    again: Callable[[int, RanksLost], object],
    ended: Ended,
) -> None:
    """Run several gangs to their ends, as many at a time as there is room for. Call it in the main thread.

    Args:
        num: how many there are.
        tolerable: asked of what ended a run; anything else stops the others in order, and is raised.
        again: told of a run that lost its ranks beside others, and is begun again; its place, a host that is gone or
            memory that was too little, is used no more. One that loses them alone is at its end.
        ended: told of each run at its end; whatever it raises stops the others in order, and is raised.

    Raises:
        HeadwayError: as `supervise`.
    """
    _Together(room, num, begin, ledger, budget_scope, tolerable, again, ended).run()


class _Together:
    def __init__(
        self,
        room: Room,
        num: int,
        begin: Begin,
        ledger: Ledger,
        scope: str,
        tolerable: Tolerable,
        again: Callable[[int, RanksLost], object],
        ended: Ended,
    ) -> None:
        self._room, self._free = room, list(room.slots)
        self._begin, self._ledger, self._scope = begin, ledger, scope
        self._again, self._on_end = again, ended
        self._num_lost: dict[int, int] = defaultdict(int)
        """By run: how often it lost its ranks beside others."""
        self._beside = Beside()
        self._stop: StopRequest | None = None
        self._taken: dict[int, tuple[Slot, Path]] = {}
        self._pace = _Pace(room.paces)
        self._turns = Turns(
            num,
            begin=self._supervised,
            has_room=lambda num_going: bool(self._free) and room.fits_one_more(self._going()),
            tolerable=lambda error: self._was_lost_beside_others(error) or tolerable(error),
            ended=self._ended,
            pause_s=PAUSE_S,
        )

    def run(self) -> None:
        try:
            self._turns.run()
        except BaseException:
            self._stop = StopRequest.now("what trains beside it was stopped")
            # All hear of it at their next turn, and keep their checkpoints side by side.
            self._turns.finish()
            raise
        finally:
            self._turns.close()
        if (pace := self._room.paces.pace()) is not None:
            self._ledger.event("gang.pace", message=str(pace))

    def _going(self) -> Mapping[Path, bool]:
        return {folder: self._pace.has_stepped(number) for number, (_, folder) in self._taken.items()}

    def _supervised(self, number: int) -> Steps[AttemptOutcome] | None:
        if (started := self._begin(number)) is None:
            return None
        gang, poll = started
        slot = self._free.pop(0)
        if len(self._room.slots) == 1:
            slot = self._room.whole
        self._taken[number] = slot, gang.run_dir

        def look() -> int | None:
            step = poll()
            self._pace.saw(number, gang.run_dir.name, step, len(self._taken))
            return step

        # Each is told what may be paid for in all, and its attempts cost beside those of the others.
        stop = replace(gang.stop, paid_s=gang.stop.paid_s / len(self._room.slots))
        # Attempts that were lost beside others say little of those that follow.
        times, spec = 1 + self._num_lost[number], slot.spec
        budget = {name: times * getattr(spec, name) for name in ("max_attempts", "max_cycles_without_progress")}
        return supervising(
            spec.model_copy(update=budget),
            replace(gang, environment={**gang.environment, **slot.environment}, stop=stop),
            ledger=self._ledger.naming(run=gang.run_dir.name),
            budget_scope=self._scope,
            poll=look,
            requested=lambda: self._stop,
            beside=self._beside,
            whole=self._room.whole.spec,
        )

    def _was_lost_beside_others(self, error: HeadwayError) -> bool:
        return isinstance(error, RanksLost) and len(self._room.slots) > 1 and self._stop is None

    def _ended(self, number: int, error: HeadwayError | None) -> None:
        slot, folder = self._taken.pop(number)
        if isinstance(error, RanksLost) and self._was_lost_beside_others(error):
            self._room.slots = [each for each in self._room.slots if each is not slot]
            self._num_lost[number] += 1
            message = (
                f"{folder.name} lost its ranks beside others and begins again, with {len(self._room.slots)} at a time"
            )
            self._ledger.event("gang.again", message=message)
            self._turns.waiting.append(number)
            self._again(number, error)
            return
        self._free.append(slot)
        self._on_end(number, error)


class _Pace:
    """Looks at the steps of gangs while they train."""

    def __init__(self, paces: StepPaces) -> None:
        self._paces = paces
        self._seen: dict[int, tuple[int, float, int]] = {}
        """By run: its newest step, when it was seen first, and how many trained then."""

    def has_stepped(self, number: int) -> bool:
        """Whether it has made a step."""
        return number in self._seen

    def saw(self, number: int, run: str, step: int | None, num_going: int) -> None:
        if step is None:
            return
        now_s = time.monotonic()
        last_step, since_s, num_then = self._seen.get(number, (step, now_s, num_going))
        if step > last_step and num_going == num_then:
            self._paces.add(run, num_going, (now_s - since_s) / (step - last_step))
        if number not in self._seen or step > last_step or num_going != num_then:
            self._seen[number] = step, now_s, num_going
