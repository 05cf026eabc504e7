"""A recipe's model laid over a mesh: split, sharded, and filled with the weights that one process would draw."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.seeds import derive, seed_everything
from headway.training.config.training_spec import TrainingSpec
from headway.training.parallel.deferred_init import DeferredModel
from headway.training.parallel.mesh import Mesh
from headway.training.parallel.metered_tensors import MeteredAllGather, MeteredReduceScatter
from headway.training.parallel.precision import DTYPES
from headway.training.parallel.shardable import require_shardable
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe, named_blocks

Draws = Callable[[], Iterator[tuple[str, Tensor]]]
"""Parameters and buffers, whole, on the CPU, as one process would draw them."""


def uninitialised(recipe: Recipe, spec: TrainingSpec) -> tuple[nn.Module, Draws]:
    """The model without memory, and its weights to come."""
    # Recording draws nothing of torch's, but what a recipe draws by numpy or `random` is a constant from here on.
    seed_everything(derive(spec.seed, "weights"))
    if spec.parallel.deferred_init:
        deferred = DeferredModel(recipe.build)

        def draw() -> Iterator[tuple[str, Tensor]]:
            # Seeded again: recording and drawing are at different times, and each must begin at the same place.
            seed_everything(derive(spec.seed, "weights"))
            return deferred.draw()

        return deferred.model, draw
    model = recipe.build()
    whole = [(name, value.detach()) for name, value in (*model.named_parameters(), *model.named_buffers())]
    return model.to("meta"), lambda: iter(whole)


def parallelize(
    recipe: Recipe, model: nn.Module, spec: TrainingSpec, process_group: ProcessGroup, mesh: Mesh
) -> nn.Module:
    """Split a model without memory over the mesh as the configuration says, and give this rank's part memory."""
    # Splitting and allocating replace parameters, so which ones were one has to be known before.
    ties = _ties(model)
    blocks = named_blocks(recipe, model) or [model]
    if mesh.shape.tensor > 1 or mesh.shape.shard > 1:
        from headway.training.parallel.metered_tensors import (
            meter_tensors,  # and with it what a plain rank does without
        )

        meter_tensors(process_group.traffic)
    if mesh.shape.tensor > 1:
        _split_tensors(recipe, model, spec, mesh)
        # At once: sharding must see one parameter, not two.
        _tie(ties)
    for block in blocks:
        # Instead of the method, so that names stay the recipe's.
        if spec.compile:
            block.forward = torch.compile(block.forward)
        # After compiling, so that the compiled block is what is computed again.
        if spec.parallel.recompute:
            block.forward = functools.partial(_recomputed, block.forward)
    if mesh.shape.shard > 1:
        _shard(model, blocks, spec, process_group, mesh)
    # Memory only now, for this rank's part alone.
    model.to_empty(device=process_group.device)
    _tie(ties)
    return model


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    # Non-reentrant: a reentrant pass would run hooks on gradients twice.
    return (
        checkpoint(forward, *args, use_reentrant=False, **kwargs)
        # Without gradients nothing is kept, so there is nothing to compute again.
        if torch.is_grad_enabled()
        else forward(*args, **kwargs)
    )


def _shard(
    model: nn.Module, blocks: Sequence[nn.Module], spec: TrainingSpec, process_group: ProcessGroup, mesh: Mesh
) -> None:
    """FSDP2: gradients travel in what they are compressed to, parameters in the precision that is computed in.

    In exact mode parameters travel in fp32, since autocast leaves some of them as they are, and replicas are added up
    elsewhere.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    assert mesh.devices is not None
    require_shardable(model)
    is_fast = spec.parallel.mode == "fast"
    # Exact mode sums over copies of the model by its own tree, so FSDP2 sees the shard dimension alone.
    names = ("replicate", "shard") if is_fast and mesh.shape.replicate > 1 else "shard"
    policy = MixedPrecisionPolicy(reduce_dtype=DTYPES[spec.rounding])
    if is_fast and spec.precision != "fp32":
        # Autocast decides what is computed in what, as it does for models that are not sharded.
        policy = dataclasses.replace(policy, param_dtype=DTYPES[spec.precision], cast_forward_inputs=False)
    # Blocks before the whole: FSDP2 gives each module what its children have not taken.
    for module in dict.fromkeys((*blocks, model)):
        fully_shard(module, mesh=mesh.devices[names], mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # 1.0: the engine divides once, by the number of tokens.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # sums, not means: gloo has no other
            module.set_custom_all_gather(MeteredAllGather(process_group.traffic))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(MeteredReduceScatter(process_group.traffic))  # type: ignore[arg-type]
    # A block that a batch does not use must take part in the exchange, or its peers wait.
    cast(FSDPModule, model).set_reduce_scatter_unused_params(True)


def _split_tensors(recipe: Recipe, model: nn.Module, spec: TrainingSpec, mesh: Mesh) -> None:
    from torch.distributed.tensor.parallel import parallelize_module

    plan = getattr(recipe, "tensor_plan", None)
    if plan is None:
        raise ConfigError(
            f"the recipe {spec.recipe.name} brings no tensor plan.",
            where="training.parallel.tensor",
            advice="Give the recipe a `tensor_plan`, or shard the model instead.",
        )
    assert mesh.devices is not None
    parallelize_module(model, mesh.devices["tensor"], dict(plan(spec.parallel)))


def _ties(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Places of every parameter that has more than one."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]


def _tie(ties: Sequence[Sequence[tuple[nn.Module, str]]]) -> None:
    """Make parameters one again that were one, since splitting and allocating treat every place alone."""
    for (first, first_name), *others in ties:
        for module, name in others:
            module.register_parameter(name, getattr(first, first_name))
