"""The language model on ranks of which one, in each attempt, comes to a halt or grows slow where it was planned."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel
from torch import nn

import headway.training.checkpoint.save
import headway.training.engine.learner
from headway.training.engine.batches import RankBatches
from headway.training.engine.learner import Learner
from headway.training.launch.base.protocol import ATTEMPT, ATTEMPT_DIR, write_json
from headway.training.observe.traffic import TrafficMeter
from headway.training.parallel.strategy import Batch
from headway.training.recipes.language_model import LanguageModel
from headway.training.recipes.protocol import Losses
from tests.soak.hang_table import SLOW, SLOW_S

PLANS = "plans.json"
"""In a run's folder: a plan for each attempt."""
PLANTED = "planted.json"
"""In an attempt's: when what was planned came about."""


class Plan(BaseModel):
    """What one attempt is to suffer."""

    rank: int
    how: str
    """`SIGSTOP`, `sleep`, `slow`; else nothing that a rank does to itself."""
    phase: str = ""
    """See `PHASES`."""
    after_steps: int = 0
    """Of this attempt."""


PHASES = ("start", "data", "forward", "before a collective", "in a collective", "optimizer", "saving")


class Planted:
    """In one rank: knows at which step it is, and what is to happen when."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[ATTEMPT_DIR])
        plans = json.loads((self._folder.parents[1] / PLANS).read_text())
        self._plan = Plan.model_validate(plans[(int(os.environ[ATTEMPT]) - 1) % len(plans)])
        self._is_mine = self._plan.rank == int(os.environ["RANK"])
        self._first_step: int | None = None
        self._steps_done = -1
        self._slept_at = -1
        self._started_s, self._last_step_s = time.monotonic(), 0.0

    def at_step(self, step: int) -> None:
        now_s = time.monotonic()
        if self._first_step is not None:
            self._last_step_s = now_s - self._started_s
        self._started_s = now_s
        if self._first_step is None:
            self._first_step = step
        self._steps_done = step - self._first_step

    def at(self, phase: str) -> None:
        plan = self._plan
        is_due = phase == "start" or self._steps_done >= plan.after_steps
        if not self._is_mine or phase != plan.phase or not is_due:
            return
        if plan.how == SLOW:
            if self._slept_at != self._steps_done:
                self._slept_at = self._steps_done
                time.sleep(max(SLOW_S, self._last_step_s / 2))
            return
        write_json(self._folder / PLANTED, {"unix_s": time.time()})
        if plan.how == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
        sleep_for_ever()


def sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(1000)


class Hanging(LanguageModel):
    """Its first one in a process plants what is planned."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if ATTEMPT in os.environ and not hasattr(Hanging, "planted"):
            Hanging.planted = plant()

    planted: Planted

    def losses(self, model: nn.Module, batch: Batch) -> Losses:
        if getattr(model, "training", False):
            self.planted.at("forward")
        return super().losses(model, batch)


def plant() -> Planted:
    planted = Planted()

    def before(owner: Any, name: str, phase: str) -> None:
        _wrap(owner, name, lambda whole: lambda *words, **named: (planted.at(phase), whole(*words, **named))[1])

    def counted(backward: Callable[..., Any]) -> Callable[..., Any]:
        def counting(learner: Learner, step: int, *words: Any, **named: Any) -> Any:
            planted.at_step(step)
            if learner._spec.parallel.pipeline > 1:  # whose stages but the last know of no loss
                planted.at("forward")
            return backward(learner, step, *words, **named)

        return counting

    def started(start: Callable[..., Any]) -> Callable[..., Any]:
        def starting(*words: Any, **named: Any) -> Any:
            work = start(*words, **named)
            planted.at("in a collective")
            return work

        return starting

    def made(steps: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def making(*words: Any, **named: Any) -> Iterator[Any]:
            for batches in steps(*words, **named):
                planted.at("data")
                yield batches

        return making

    _wrap(RankBatches, "steps", made)
    _wrap(Learner, "backward", counted)
    _wrap(TrafficMeter, "start", started)
    before(headway.training.engine.learner, "choose_strategy", "start")
    before(Learner, "exchange", "before a collective")
    before(Learner, "update", "optimizer")
    before(headway.training.checkpoint.save, "write_share", "saving")
    return planted


def _wrap(owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, change(getattr(owner, name)))
