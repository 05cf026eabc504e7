"""Validation while training: all ranks look at rows that neither train nor evaluate, and agree on what follows.

Which rows, when, and what follows are functions of the configuration and of the weights alone. Their memory is a scalar
of every checkpoint, so a run that was cut, or goes on on another number of ranks, decides as it would have.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import IntegrityError, TrainingFailed
from headway.training.checkpoint.layout import BEST_STEP
from headway.training.config.validation import ValidationSpec
from headway.training.evaluation.scorers import Measured
from headway.training.evaluation.validation_rows import Block, ValidationRows
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.ledger import Ledger
from headway.training.observe.traffic import as_fields
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.distributed import ProcessGroup

ASKED_EVERY_S = 1.0
MAX_TURNS = 1 << 20
HELD_TURNS = 16
"""Whose answers stay on the device: to fetch each at once would have a GPU wait for the host."""
SCALAR = "validation"
"""In a checkpoint: the state."""


class ValidatedModel(Protocol):
    """A learner, as validation sees it."""

    @property
    def share(self) -> BatchShare: ...

    def evaluating(self) -> contextlib.AbstractContextManager[None]: ...

    def measures(self, batch: Batch) -> Mapping[str, Tensor]: ...


class ValidationState(Frozen):
    """What was seen so far."""

    step: int = 0
    """The last one that was validated; 0: none."""
    best_step: int = 0
    best: float | None = None
    stale: int = 0
    """Validations since without a better one."""

    def after(self, step: int, value: float, spec: ValidationSpec, *, greater_is_better: bool) -> ValidationState:
        gain = float("inf") if self.best is None else (value - self.best if greater_is_better else self.best - value)
        if gain > spec.min_delta:
            return ValidationState(step=step, best_step=step, best=value)
        return ValidationState(step=step, best_step=self.best_step, best=self.best, stale=self.stale + 1)


class Validation:
    """
    Args:
        model: whose forward passes are validated.
        rows: of the validation split; None where there is no `spec`, and nothing is validated.
        ledger: gets a span of each validation, with what came of it.
        stop_is_due: whether this rank wants to stop, asked about once a second; what one wants all do.
    """

    def __init__(
        self,
        spec: ValidationSpec | None,
        model: ValidatedModel,
        rows: ValidationRows | None,
        process_group: ProcessGroup,
        ledger: Ledger,
        *,
        max_steps: int,
        stop_is_due: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec, self._model, self._rows = spec, model, rows
        self._process_group, self._max_steps = process_group, max_steps
        self._ledger, self._heartbeat = ledger, Heartbeat(ledger, SCALAR)
        self._stop_is_due = stop_is_due
        self.state = ValidationState()

    @property
    def has_converged(self) -> bool:
        """Whether the run is to end, for it has become no better for long enough."""
        patience = None if self._spec is None else self._spec.patience
        return patience is not None and self.state.stale >= patience

    @property
    def best_step(self) -> int | None:
        """Whose checkpoint is the model; None: the last one's."""
        return self.state.best_step if self._spec is not None and self._spec.keep_best else None

    def is_due(self, step: int) -> bool:
        """Whether so many done steps are still to be validated."""
        return self._spec is not None and step > self.state.step and self._spec.is_due(step, self._max_steps)

    def wants_checkpoint(self, step: int) -> bool:
        return self.best_step == step and step > 0

    def run(self, step: int) -> bool:
        """Validate after so many steps; all ranks call it. A stop breaks it off, and then it is still due.

        Returns:
            whether a rank wants to stop.

        Raises:
            TrainingFailed: the figure is no number.
        """
        assert self._spec is not None and self._rows is not None
        measure, before = self._rows.measure, self.state
        with self._ledger.span("validation", step=step, metric=measure.name, num_rows=self._rows.num_rows) as fields:
            with self._model.evaluating():
                own = self._own_sums(self._rows)
            if own is None:
                return True
            fields["value"] = value = self._rows.value(self._all_sums(self._rows, own))
            fields |= as_fields(self._process_group.traffic.take())
            if not math.isfinite(value):
                del fields["value"]
                raise TrainingFailed(
                    f"the validation after step {step} came to {value} {measure.name}.",
                    where="training.validation",
                    advice="The model gives no numbers for some rows: lower the learning rate, or look at the data.",
                )
            self.state = before.after(step, value, self._spec, greater_is_better=measure.greater_is_better)
            fields |= {"best_step": self.state.best_step, "stale": self.state.stale, "patience": self._spec.patience}
        return self._anyone_stops()

    def scalars(self) -> dict[str, str | int]:
        if self._spec is None:
            return {}
        return {SCALAR: self.state.model_dump_json(), **({BEST_STEP: self.best_step} if self.best_step else {})}

    def load(self, scalars: Mapping[str, Any]) -> None:
        """Raises `IntegrityError`: the checkpoint has no such state."""
        if self._spec is None:
            return
        try:
            self.state = ValidationState.model_validate_json(str(scalars[SCALAR]))
        except (KeyError, ValueError) as error:
            raise IntegrityError(f"scalar {SCALAR!r} is missing or not one ({error}).", where="checkpoint") from error

    def _all_sums(self, rows: ValidationRows, own: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Of all blocks, from all ranks."""
        # Of each block from one rank alone, and as bytes: a float's digits are what they were.
        data = np.array(own, dtype=np.float64).tobytes()
        sums = np.frombuffer(b"".join(self._process_group.gather_bytes(data)), dtype=np.float64).reshape(-1, 2)
        assert len(sums) == rows.num_blocks, (len(sums), rows.num_blocks)
        return [(float(numerator), float(denominator)) for numerator, denominator in sums]

    def _own_sums(self, rows: ValidationRows) -> list[tuple[float, float]] | None:
        """Of this rank's blocks; None: a rank wants to stop."""
        share, device = self._model.share, self._process_group.device
        own: list[tuple[float, float]] = []
        held: list[tuple[Block, Mapping[str, Tensor]]] = []
        every_turns, started_s = 1, time.perf_counter()
        # As many forward passes on each rank: those that hold parts of a model need one another for each.
        num_turns = -(-rows.num_blocks // share.count)
        numbers = [turn * share.count + share.index for turn in range(num_turns)]
        blocks = rows.blocks([min(number, rows.num_blocks - 1) for number in numbers], device)
        for turn, (number, block) in enumerate(zip(numbers, blocks, strict=True)):
            if turn == 1:
                every_turns = self._turns_a_second(time.perf_counter() - started_s)
            if turn and turn % every_turns == 0 and self._anyone_stops():
                return None
            measured = self._model.measures(block.batch)
            if number < rows.num_blocks and share.has_answers:
                held.append((block, measured))
            # The first at once, for it is timed.
            if turn == 0 or len(held) == HELD_TURNS or turn == num_turns - 1:
                own += [rows.sums(block.columns, _on_host(measured, rows.names)) for block, measured in held]
                held.clear()
            self._heartbeat()
        return own

    def _turns_a_second(self, turn_s: float) -> int:
        """By rank 0's clock, for all: they must ask one another at the same turns."""
        turns = min(int(ASKED_EVERY_S / max(turn_s, 1e-6)), MAX_TURNS)
        return max(1, int.from_bytes(self._process_group.from_leader(turns.to_bytes(4))))

    def _anyone_stops(self) -> bool:
        return bool(self._process_group.gather(torch.tensor([float(self._stop_is_due())])).any())


def _on_host(measured: Mapping[str, Tensor], names: Collection[str]) -> Measured:
    return {name: values.double().cpu().numpy() for name, values in measured.items() if name in names}
