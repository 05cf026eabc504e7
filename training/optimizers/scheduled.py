"""The optimizer of one model: an update rule for each group of its parameters, all on one schedule."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.elementwise import SGD, AdamW
from headway.training.optimizers.groups import Treatment, parameter_groups
from headway.training.optimizers.muon import Matrices, Muon
from headway.training.optimizers.schedule import lr_factor
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
        # A pure function of the step and the batch, so that nothing of the schedule has to be stored.
        optimizer, scale = spec.optimizer, spec.optimizer.lr_scale(spec.global_batch_sequences)
        self._peak_lr = optimizer.lr * scale
        self._paced: list[_GroupSchedule] = []
        own = model.parameters
        for treatment, members in parameter_groups(model.model, recipe, optimizer):
            if treatment is not None:
                lr = (optimizer.matrix_lr if treatment.rule == "muon" else optimizer.lr) * treatment.lr_multiplier
                rule = _rule(treatment, {name: own[name] for name in members}, model, optimizer)
                self._paced.append(_GroupSchedule(rule, lr * scale))

    def step(self, step: int, *, num_updates: int | None = None) -> float:
        """Update the parameters from their gradients; the first step is 0. Returns AdamW's or SGD's learning rate.

        Args:
            num_updates: counts this one; fewer than `step + 1` where steps were skipped.
        """
        factor = lr_factor(self._spec.schedule, step, self._spec.max_steps)
        for rule, peak_lr in self._paced:
            # Bias correction counts updates: a step that was skipped moved no moment.
            rule.update(peak_lr * factor, step + 1 if num_updates is None else num_updates)
        return self._peak_lr * factor

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
