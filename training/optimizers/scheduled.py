"""The optimizer of one model: an update rule for each group of its parameters, all on one schedule of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.elementwise import SGD, AdamW
from headway.training.optimizers.groups import Treatment, parameter_groups
from headway.training.optimizers.muon import Matrices, Muon
from headway.training.optimizers.update_rule import Parameters, UpdateRule
from headway.training.recipes.protocol import Recipe


class ParallelizedModel(Matrices, Protocol):
    """A model as it lies over the ranks (`headway.training.parallel.strategy`)."""

    model: nn.Module

    @property
    def parameters(self) -> Parameters:
        """Plain tensors, which are the model's own or this rank's slices of them."""


class _GroupSchedule(NamedTuple):
    rule: UpdateRule
    peak_lr: float


class ScheduledOptimizer:
    """Updates a model, or the part of it that is here; its whole state is a set of named tensors and the step.

    Raises:
        ConfigError: the configuration's groups do not fit the model.
    """

    def __init__(self, model: ParallelizedModel, recipe: Recipe, spec: TrainingSpec) -> None:
        self._spec = spec
        optimizer = spec.optimizer
        self._paced: list[_GroupSchedule] = []
        own = model.parameters
        for treatment, members in parameter_groups(model.model, recipe, optimizer):
            if treatment is not None:
                lr = (optimizer.matrix_lr if treatment.rule == "muon" else optimizer.lr) * treatment.lr_multiplier
                if here := {name: own[name] for name in members if name in own}:
                    self._paced.append(_GroupSchedule(_rule(treatment, here, model, optimizer), lr))

    def step(
        self, step: int, *, num_updates: int | None = None, batch_rows: int | None = None, factor: float | None = None
    ) -> float:
        """Update the parameters from their gradients; the first step is 0. Returns AdamW's or SGD's learning rate.

        Args:
            num_updates: counts this one; fewer than `step + 1` where steps were skipped.
            batch_rows: of the step's global batch; by default as many as the largest has.
            factor: what peak learning rates are multiplied by; None: the schedule's.
        """
        # A pure function of the step and its batch, so that nothing of the schedule has to be stored.
        scale = self._spec.optimizer.lr_scale(batch_rows or self._spec.global_batch_sequences)
        if factor is None:
            factor = lr_factor(self._spec.schedule, step, self._spec.max_steps)
        for rule, peak_lr in self._paced:
            # Bias correction counts updates: a step that was skipped moved no moment.
            rule.update(peak_lr * scale * factor, step + 1 if num_updates is None else num_updates)
        return self._spec.optimizer.lr * scale * factor

    def keep_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the state in these from now on, which `tensors` names."""
        for paced in self._paced:
            for moment, values in paced.rule.moments.items():
                values.update({name: tensors[f"{moment}.{name}"] for name in values})

    def tensors(self) -> dict[str, Tensor]:
        """State by `<moment>.<parameter>`; the tensors themselves, not copies."""
        return {
            f"{moment}.{name}": value
            for paced in self._paced
            for moment, values in paced.rule.moments.items()
            for name, value in values.items()
        }


def _rule(treatment: Treatment, parameters: Parameters, model: ParallelizedModel, spec: OptimizerSpec) -> UpdateRule:
    match treatment.rule:
        case "adamw":
            return AdamW(parameters, spec, weight_decay=treatment.weight_decay)
        case "sgd":
            return SGD(parameters, spec, weight_decay=treatment.weight_decay)
        case "muon":
            return Muon(parameters, spec, weight_decay=treatment.weight_decay, matrices=model)


def lr_factor(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """What peak learning rates are multiplied by at `step`, counted from 0.

    With w warm-up steps of n: (step + 1) / w before step w, which reaches the peak at step w - 1. From step w on, with
    t = (step - w) / (n - w) and the final factor f:

    - cosine: f + (1 - f) (1 + cos(pi t)) / 2, as torch's `CosineAnnealingLR` over n - w steps.
    - linear: f + (1 - f) (1 - t), as torch's `LinearLR` over n - w steps.
    - wsd: f + (1 - f) min(1, (n - step) / d), d = decay_fraction n steps, or n - w where that is less.
    - inverse-sqrt: sqrt(max(1, w) / (step + 1)).
    - constant: 1.

    f stands at step n, right behind the last one: the last step still trains where f is 0.
    """
    if step < schedule.warmup_steps:
        # Step 0 already trains: a factor of zero would waste a step.
        return (step + 1) / schedule.warmup_steps
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":  # Vaswani et al., 2017, section 5.3
            return math.sqrt(max(1, schedule.warmup_steps) / (step + 1))
        case _:
            return schedule.final_factor + (1 - schedule.final_factor) * _decay(schedule, step, max_steps)


def _decay(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """From 1 to 0, over the steps behind the warm-up."""
    # At least 1: a run may be all warm-up.
    remaining_steps = max(1, max_steps - schedule.warmup_steps)
    match schedule.kind:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * (step - schedule.warmup_steps) / remaining_steps))
        case "linear":
            return (max_steps - step) / remaining_steps
        case _:
            return min(1.0, (max_steps - step) / min(schedule.decay_fraction * max_steps, remaining_steps))
