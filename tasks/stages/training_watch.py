"""What the ranks of a run write down while they train, for people, MLflow and the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.types.report_text import figure, length
from headway.tasks.core.artifacts import ProgressBar, artifact_key
from headway.tasks.core.context import RunContext
from headway.tasks.registry.track import SUMMARY
from headway.training.config.shapes import TabularNumberShape
from headway.training.launch.base.gang import leader_spools
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.observe.ledger import Event, SpoolTail
from headway.training.observe.step_summary import summarise_steps


class TrainingWatch:
    """Tails the ranks' ledgers: the newest step for the supervisor, rank 0's records for people and MLflow."""

    def __init__(
        self,
        context: RunContext,
        run_dir: Path,
        facts: Mapping[str, Any],
        ship: Callable[[Event], object],
        *,
        joins_in: bool = False,
        shape: TabularNumberShape | None = None,
    ) -> None:
        """Args:
        shape: of data with a number to predict, where the recipe is a built-in one: people see its loss as `rmse`.
        joins_in: whether the newest attempt, if it has not ended, continues, and is reported from its first step.
        """
        self._context, self._run_dir, self._facts, self._ship = context, run_dir, facts, ship
        self._shape = shape
        self._tails: dict[Path, SpoolTail] = {}
        self._pace = Pace()
        key = artifact_key(context.pipeline, "training", str(facts.get("trial", "")))
        self._bar = ProgressBar(key, "Training steps, in percent")
        # One whose supervisor was killed never ends on record: of those that have not, only the newest can continue.
        newest = AttemptRecords(run_dir).all()[-1:] if joins_in else []
        running = {record.attempt for record in newest if record.end_unix_s is None}
        self._old = {spool for spool in leader_spools(self._run_dir) if int(spool.parent.parent.name) not in running}
        self._step: int | None = None

    def poll(self) -> int | None:
        for spool in leader_spools(self._run_dir):
            if spool in self._old:
                continue
            # A tail remembers how far it has read, so that an event is relayed once.
            for event in self._tails.setdefault(spool, SpoolTail(spool)).poll():
                self._observe(event)
        return self._step

    def sum_up(self) -> None:
        """Tell the ledger and MLflow what the steps of this flow run came to, where there were any."""
        steps = summarise_steps(event for spool in self._tails for event in SpoolTail(spool).stream())
        if steps is not None:
            self._ship(self._context.ledger.event(SUMMARY, **steps.model_dump()))

    def _observe(self, event: Event) -> None:
        if event["event"] == "step" and self._shape is not None and isinstance(event.get("loss"), float):
            event = {**event, "rmse": self._shape.rmse(event["loss"])}
        self._context.ledger.relay({**event, "relayed": True, **self._facts})
        if event["event"] == "validation" and "value" in event:
            self._ship(event)
        if event["event"] != "step":
            return
        # It may fall: after a restart the ranks continue from the step of an older checkpoint.
        self._step = int(event["step"])
        self._ship(event)
        max_steps = int(self._facts["max_steps"])
        line = self._pace.line(event, max_steps, str(self._facts.get("targets", "targets")))
        self._bar.move(100 * self._step / max_steps, time.monotonic(), line)


class Pace:
    """What the progress bar says beside its share: step, loss, rate, and when the last step should be done."""

    def __init__(self) -> None:
        self._last_unix_s: float | None = None
        self._step_s: float | None = None

    def line(self, step: Event, max_steps: int, targets: str) -> str:
        duration_s = max(float(step.get("duration_s", 0.0)), 1e-9)
        ended_unix_s = float(step["unix_s"]) + duration_s
        # From end to end, so that what checkpoints and restarts take counts; moved little, so that it does not shake.
        took_s = duration_s if self._last_unix_s is None else max(ended_unix_s - self._last_unix_s, 0.0)
        self._step_s = took_s if self._step_s is None else 0.9 * self._step_s + 0.1 * took_s
        self._last_unix_s = ended_unix_s
        parts = [f"step {int(step['step']):,} of {max_steps:,}"]
        if "rmse" in step:
            parts.append(f"rmse {figure(float(step['rmse']))}")
        elif "loss" in step:
            parts.append(f"loss {float(step['loss']):.4g}")
        if "tokens" in step:
            parts.append(f"{step['tokens'] / max(self._step_s, 1e-9):,.0f} {targets}/s")
        if (left := max_steps - int(step["step"])) > 0:
            parts.append(f"ends in {length(left * self._step_s)}")
        return ", ".join(parts)
