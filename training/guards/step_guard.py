"""The guard: checks every step before the optimizer moves a weight, and says what happens to a bad one.

It sees only numbers that are equal on all ranks and for every arrangement that is exact, and draws on nothing else, so
all ranks decide alike without asking each other. What it decided is part of every checkpoint; a run that resumed from
one before the decision meets the same numbers, and decides the same again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from headway.data_contracts.store.errors import IntegrityError, TrainingFailed
from headway.training.config.guards import GuardSpec, NonFinitePolicy, SpikePolicy
from headway.training.guards.notes import AlarmNotes
from headway.training.guards.plan import DataPlan, ExcludedSpan
from headway.training.guards.spike import SpikeDetector

NON_FINITE, SPIKE = "non-finite", "spike"
ADVICE = "Lower the learning rates, or look at the data of this step."
SKIPPING = {NON_FINITE: " `guards.non_finite` can skip it.", SPIKE: " `guards.spike` can skip it."}


class RollBack(Exception):
    """Raised on all ranks at once: resume from a checkpoint of `step` or earlier, without what the plan leaves out."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


class StepGuard:
    """Args:
    on_alarm: told of bad steps, with the fields of a ledger event, before anything follows from one; of those that are
        only noted, the first ones and then sums (`headway.training.guards.notes`).
    """

    def __init__(self, spec: GuardSpec, *, on_alarm: Callable[[dict[str, Any]], object] = lambda _fields: None) -> None:
        self._spec, self._notes = spec, AlarmNotes(on_alarm)
        self._spikes = SpikeDetector(spec.spike.window_steps, spec.spike.threshold)
        self.plan = DataPlan()

    def check(self, step: int, loss: float, grad_norm: float, made: tuple[int, int] | None = None) -> bool:
        """Whether to take a step, counted from 0; if not, the same step is to be tried on the next window.

        Args:
            made: of which window and on which rank, where ranks do not wait for each other: its policies only note or
                stop.

        Raises:
            RollBack: the policy says so.
            TrainingFailed: the policy says stop, or its budget is spent.
        """
        self._notes.at_step(step)
        alarm = self._alarm(loss, grad_norm)
        if alarm is not None and not self._may_pass(step, alarm, loss, grad_norm, made):
            return False
        # Only of a step that is taken: a loss that was refused must not raise the bar for the next.
        self._spikes.add(loss)
        return True

    def finish(self) -> None:
        """No step follows: report the noted alarms that were held back."""
        self._notes.finish()

    def _alarm(self, loss: float, grad_norm: float) -> str | None:
        # Loss and norm: an overflow may show in only one of them.
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return NON_FINITE
        return SPIKE if self._spikes.is_spike(loss) else None

    def _may_pass(self, step: int, alarm: str, loss: float, grad_norm: float, made: tuple[int, int] | None) -> bool:
        policy: NonFinitePolicy | SpikePolicy = self._spec.non_finite if alarm == NON_FINITE else self._spec.spike
        window, spent = self.plan.window(step), self.plan.count(alarm)
        where = f"step {step + 1}"
        if made is not None:
            window, rank = made
            where = f"step {step + 1}, batch {window} on rank {rank}"
        # A budget bounds skips and roll-backs: data or learning rates that are broken would otherwise eat all windows.
        action = "stop" if policy.action != "note" and spent >= policy.budget else policy.action
        # As text: JSON has no word for what is not finite.
        numbers = {"loss": str(loss), "grad_norm": str(grad_norm)}
        what = f"{where}: {alarm}, loss {loss:.4g}, gradient norm {grad_norm:.4g}: {action.replace('_', ' ')}."
        self._notes({"step": step + 1, "window": window, "alarm": alarm, "action": action, **numbers, "what": what})
        if action == "note":
            return True
        if action == "stop":
            raise _stop(where, alarm, loss, grad_norm, spent, may_skip=made is None)
        rewind = self._spec.rewind_steps if action == "roll_back" else 1
        first = max(0, window + 1 - rewind)
        # Where that window was trained on as a step; excluded windows in between count for none.
        target = self.plan.steps_before(first)
        self.plan = self.plan.without(ExcludedSpan(first, window + 1, alarm))
        # A single window that is skipped costs no step done so far, so training continues from here.
        if target < step:
            raise RollBack(target)
        return False

    @property
    def recent_loss(self) -> float | None:
        """Mean of the recent steps' losses, as many as a spike is told by."""
        recent = self._spikes.recent
        return math.fsum(recent) / len(recent) if recent else None

    def windows(self, step: int, max_steps: int) -> range:
        """The windows that steps [step, max_steps) may come to, the ones that could yet be skipped for included."""
        further = sum(
            policy.budget - self.plan.count(alarm)
            for alarm, policy in ((NON_FINITE, self._spec.non_finite), (SPIKE, self._spec.spike))
            if policy.action in ("skip", "roll_back")
        )
        return range(self.plan.window(step), self.plan.window(max_steps - 1) + 1 + further)

    def state(self) -> str:
        """What a checkpoint keeps."""
        return json.dumps(
            {
                "excluded": [list(each) for each in self.plan.excluded],
                # As hexadecimal: a rounded loss could decide another way after a restore.
                "recent": [loss.hex() for loss in self._spikes.recent],
                "farthest": self._spikes.farthest.hex(),
            },
            separators=(",", ":"),
        )

    def restore(self, state: str) -> None:
        """Take up what `state` gave. What this guard has left out since stays left out.

        Raises:
            IntegrityError: not such a state.
        """
        try:
            kept = json.loads(state)
            excluded = [ExcludedSpan(int(first), int(stop), str(cause)) for first, stop, cause in kept["excluded"]]
            recent = [float.fromhex(loss) for loss in kept["recent"]]
            farthest = float.fromhex(kept["farthest"])
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"the guard's state cannot be read ({error}).", where="checkpoint") from error
        # A union: what was excluded since that checkpoint stays excluded, or the run would meet it again.
        self.plan = self.plan.without(*excluded)
        self._spikes.restore(recent, farthest)

    def restart(self) -> None:
        """Forget the recent losses: the run starts from its first step."""
        self._spikes.restore((), 0.0)


def _stop(where: str, alarm: str, loss: float, grad_norm: float, spent: int, *, may_skip: bool) -> TrainingFailed:
    what = (
        f"loss {loss} or gradient norm {grad_norm} is not finite"
        if alarm == NON_FINITE
        else f"loss {loss:.4f} is a spike above the recent steps'"
    )
    budget = f", and the budget of {spent} is spent" if spent else ""
    return TrainingFailed(f"{what}{budget}.", where=where, advice=ADVICE + (SKIPPING[alarm] if may_skip else ""))
