"""A user's recipe under watch: whatever is wrong with it is told in one sentence, with the line to look at.

Only what is surely the recipe's fault becomes a `ConfigError`, which is never retried: want of memory, a lost peer and
a failing device keep their own names, for another attempt may help.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError, DataError, HeadwayError
from headway.training.launch.base.failure import cause_of
from headway.training.recipes.blame import definition, line_at_fault
from headway.training.recipes.protocol import ADVICE, Losses, Recipe

MESSAGE_CHARACTERS = 300


class CheckedRecipe:
    """The recipe; what Headway asks it for is checked on the way. All else is the recipe's own.

    Args:
        make: constructs the recipe.
        package: the top-level name of the module it comes from.
        measures: names that evaluation needs of it.
    """

    def __init__(self, make: Callable[[], Recipe], package: str, measures: tuple[str, ...]) -> None:
        self._package, self._measures = package, measures
        with self._blamed({}):
            self._recipe = make()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._recipe, name)
        return self._checked_flops(value) if name == "flops_per_token" else value

    def build(self) -> nn.Module:
        with self._blamed({}):
            model: object = self._recipe.build()
        if not isinstance(model, nn.Module):
            self._refuse("build", f"returned {_kind(model)}, not a torch module.")
        if not any(True for _ in model.parameters()):
            self._refuse("build", "returned a module without parameters: there is nothing to train.")
        return model

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        with self._blamed(batch):
            losses = self._recipe.losses(model, batch)
        if not (isinstance(losses, tuple) and len(losses) == 2 and all(isinstance(each, Tensor) for each in losses)):
            self._refuse("losses", f"returned {_kind(losses)}, not Losses(nats, valid), two tensors.")
        nats, valid = losses
        rows = len(next(iter(batch.values())))
        if nats.ndim != 2 or len(nats) != rows:
            self._refuse("losses", f"returned nats of shape {list(nats.shape)}, not (rows, targets) for {rows} rows.")
        if valid.shape != nats.shape or valid.dtype != torch.bool:
            message = f"{valid.dtype} {list(valid.shape)}".removeprefix("torch.")
            self._refuse("losses", f"returned valid as {message}, not as bool {list(nats.shape)}, the shape of nats.")
        if not nats.is_floating_point():
            self._refuse("losses", f"returned nats as {nats.dtype}, not as floating-point numbers.")
        # The last stage of a pipeline asks with a function in the model's place.
        is_training = getattr(model, "training", True) and torch.is_grad_enabled()
        if is_training and not nats.requires_grad:
            self._refuse("losses", "returned nats that do not depend on the model's parameters (detached?).")
        return Losses(nats, valid)

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        with self._blamed(batch):
            measured = self._recipe.measures(model, batch)
        if not isinstance(measured, Mapping) or not measured.keys() >= {*self._measures}:
            needed = " and ".join(f"`{name}`" for name in self._measures)
            self._refuse("measures", f"returned {_kind(measured)}, not a mapping with {needed}.")
        rows = len(next(iter(batch.values())))
        for name, values in measured.items():
            if not isinstance(values, Tensor) or values.ndim != 2 or len(values) != rows:
                message = list(values.shape) if isinstance(values, Tensor) else _kind(values)
                self._refuse("measures", f"returned {name} as {message}, not as a tensor (rows, targets), {rows} rows.")
        return measured

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        with self._blamed({}):
            names = tuple(self._recipe.hidden_matrices(model))
        dims = {name: value.ndim for name, value in model.named_parameters(remove_duplicate=False)}
        # A rank of a pipeline asks about its part of the model.
        for name in names:
            if name in dims and dims[name] != 2:
                self._refuse("hidden_matrices", f"names {name}, which has {dims[name]} dimensions and is no matrix.")
        return names

    def example_input(self) -> Tensor:
        with self._blamed({}):
            example: object = self._recipe.example_input()
        if not isinstance(example, Tensor):
            self._refuse("example_input", f"returned {_kind(example)}, not a tensor.")
        return example

    def _checked_flops(self, own: Callable[[int], float]) -> Callable[[int], float]:
        # A recipe need not have it, and who asks looks whether it is there.
        def flops_per_token(num_parameters: int) -> float:
            with self._blamed({}):
                flops: object = own(num_parameters)
            if not (isinstance(flops, int | float) and 0 < flops < math.inf):
                message = f"{flops}" if isinstance(flops, int | float) else _kind(flops)
                self._refuse("flops_per_token", f"returned {message}, not a number above 0.")
            return float(flops)

        return flops_per_token

    @contextlib.contextmanager
    def _blamed(self, batch: Mapping[str, Tensor]) -> Iterator[None]:
        """Name the recipe's line for what went wrong in it."""
        try:
            yield
        except HeadwayError:
            raise
        except (Exception, SystemExit) as error:
            if cause_of(error) != "training" or _is_the_devices(error):
                raise
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
            columns = f"The batch has {', '.join(batch)}. " if isinstance(error, KeyError) and batch else ""
            where = line_at_fault(error, self._package) or "recipe"
            raise ConfigError(f"{text}.", where=where, advice=f"{columns}{ADVICE}") from error

    def _refuse(self, method: str, problem: str) -> NoReturn:
        raise ConfigError(f"{method} {problem}", where=_definition(self._recipe, method), advice=ADVICE)


def require_finite_first_loss(recipe: Recipe, batch: Mapping[str, Tensor], loss: float) -> None:
    """Refuse a recipe whose loss is no number before anything was learnt: no guard could help it.

    Args:
        batch: the first rows of the sample order.
        loss: of the weights that the run begins with, on these rows.

    Raises:
        DataError: the rows themselves hold what is not finite.
        ConfigError: naming the recipe's line.
    """
    if math.isfinite(loss):
        return
    for name, values in batch.items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise DataError(
                f"the first rows hold values that are not finite, and the loss is {loss}.",
                where=f"column {name}",
                advice="Give the contract a rule `finite`, or mend the source.",
            )
    raise ConfigError(
        f"losses makes {loss} of the first {len(next(iter(batch.values())))} rows, before any step.",
        where=_definition(recipe, "losses"),
        advice="Look for a logarithm of 0, a division by 0, or initial weights that are too large.",
    )


def _definition(recipe: Recipe, method: str) -> str:
    """File and line where the recipe defines a method."""
    return definition(getattr(type(getattr(recipe, "_recipe", recipe)), method)) or "recipe"


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _is_the_devices(error: BaseException) -> bool:
    words = ("CUDA error", "NCCL", "cuDNN")
    return isinstance(error, torch.AcceleratorError) or any(word in str(error) for word in words)
