"""Which parameter is updated by which rule, with which decay: a pure function of the model and the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.name_patterns import matches, require_known, require_matches
from headway.training.config.optimizer import OptimizerSpec, ParameterGroupSpec, Rule
from headway.training.recipes.protocol import Recipe

WHERE = "training.optimizer.groups"


class Treatment(NamedTuple):
    """What all parameters of one group have in common."""

    rule: Rule
    lr_multiplier: float
    weight_decay: float


class ParameterGroup(NamedTuple):
    treatment: Treatment | None
    """None: frozen."""
    parameters: dict[str, nn.Parameter]

    def __str__(self) -> str:
        """For a person: rule, tensors, parameters, and what is out of the ordinary."""
        count = sum(parameter.numel() for parameter in self.parameters.values())
        size = f"{len(self.parameters)} tensors, {count:,} parameters"
        if self.treatment is None:
            return f"frozen: {size}"
        multiplier, decay = self.treatment.lr_multiplier, self.treatment.weight_decay
        rest = f"{f', lr x {multiplier:g}' if multiplier != 1 else ''}{f', decay {decay:g}' if decay else ''}"
        return f"{self.treatment.rule}: {size}{rest}"


def group_specs(recipe: Recipe, spec: OptimizerSpec) -> tuple[ParameterGroupSpec, ...]:
    """Those of the configuration, and behind them the recipe's own `parameter_groups`, if it has any."""
    return (*spec.groups, *getattr(recipe, "parameter_groups", ()))


def parameter_groups(model: nn.Module, recipe: Recipe, spec: OptimizerSpec) -> list[ParameterGroup]:
    """The model's parameters, or those of the part that is here, grouped by treatment, frozen ones last.

    A tied weight is there once, under its first name, and answers to all of its names.

    Raises:
        ConfigError: Muon is to update what is no matrix, or two groups treat one tensor otherwise.
    """
    specs, hidden = group_specs(recipe, spec), set(recipe.hidden_matrices(model))
    embeddings = _embedding_ids(model)
    found: dict[Treatment | None, dict[str, nn.Parameter]] = {}
    names = all_names(model)
    for name, parameter in model.named_parameters():
        own = _spec_of(names[name], specs)
        # Decay is for matrices between layers, as is usual; biases, gains and embeddings keep their scale.
        decays = parameter.ndim > 1 and id(parameter) not in embeddings
        # A recipe may freeze some by itself.
        is_frozen = own.frozen or not parameter.requires_grad
        treatment = (
            None if is_frozen else _treatment(own, spec, is_hidden=not hidden.isdisjoint(names[name]), decays=decays)
        )
        if treatment is not None and treatment.rule == "muon" and parameter.ndim != 2:
            raise ConfigError(f"muon updates matrices, and {name} has {parameter.ndim} dimensions.", where=WHERE)
        found.setdefault(treatment, {})[name] = parameter
    # One order on every rank, for some rules exchange slices while they update.
    return [ParameterGroup(key, found[key]) for key in sorted(found, key=lambda key: (key is None, key or ()))]


class Freezing:
    """A recipe whose models come with their frozen parameters frozen; all else is the recipe's."""

    def __init__(self, recipe: Recipe, spec: OptimizerSpec) -> None:
        self._recipe, self._spec = recipe, spec

    def build(self) -> nn.Module:
        model = self._recipe.build()
        freeze(model, self._recipe, self._spec)
        return model

    def __getattr__(self, name: str) -> Any:
        # Anything else goes to the recipe itself, which may bring methods that this class knows nothing of.
        return getattr(self._recipe, name)


def freeze(model: nn.Module, recipe: Recipe, spec: OptimizerSpec) -> None:
    """Take the gradient from the frozen parameters of a whole model, before anything is built upon it.

    Raises:
        ConfigError: a pattern or `hidden_matrices` names no parameter, two groups treat one tensor otherwise, or
            nothing is left to train.
    """
    specs = group_specs(recipe, spec)
    aliases = all_names(model)
    names = [name for each in aliases.values() for name in each]
    require_matches((pattern for group in specs for pattern in group.parameters), names, where=WHERE)
    if names:
        require_known(recipe.hidden_matrices(model), names, source="hidden_matrices", where="recipe")
    # Before sharding and before hooks, which would otherwise be laid on parameters that never get a gradient.
    for name, parameter in model.named_parameters():
        if _spec_of(aliases[name], specs).frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no parameter is left to train." if names else "the model has no parameters.",
            where=WHERE if names else "recipe",
            advice="Freeze fewer of them." if names else "`build` must return a module that has some.",
        )


def all_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """By the first name of every parameter, all of its names, that one first: a tied weight has several."""
    by_tensor: dict[int, list[str]] = {}
    # `remove_duplicate=False` shows a tied weight under each name, by any of which a pattern may mean it.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(parameter), []).append(name)
    return {names[0]: tuple(names) for names in by_tensor.values()}


def _spec_of(names: Sequence[str], specs: Sequence[ParameterGroupSpec]) -> ParameterGroupSpec:
    """The first group that matches one of a tensor's names.

    Raises:
        ConfigError: another group matches only other names of it, and treats it otherwise.
    """
    usual = ParameterGroupSpec(parameters=("*",))
    chosen = next((group for group in specs if any(matches(name, group.parameters) for name in names)), usual)
    own = next(name for name in names if matches(name, chosen.parameters))
    for name in names:
        other = next((group for group in specs if matches(name, group.parameters)), chosen)
        # A tied weight can have only one treatment; by which of its names it was meant must not be guessed.
        if not matches(own, other.parameters) and _without_names(other) != _without_names(chosen):
            raise ConfigError(
                f"{' and '.join(names)} are one tensor, and the groups {chosen} and {other} treat it otherwise.",
                where=WHERE,
                advice="Let one group alone match it, under any of its names.",
            )
    return chosen


def _without_names(group: ParameterGroupSpec) -> ParameterGroupSpec:
    return group.model_copy(update={"parameters": ("*",)})


def _treatment(own: ParameterGroupSpec, spec: OptimizerSpec, *, is_hidden: bool, decays: bool) -> Treatment:
    usual: Rule = "adamw" if spec.kind == "muon" and not is_hidden else spec.kind
    decay = own.weight_decay if own.weight_decay is not None else spec.weight_decay if decays else 0.0
    return Treatment(own.rule or usual, own.lr_multiplier, decay)


def _embedding_ids(model: nn.Module) -> set[int]:
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {id(table.weight) for table in tables}
