"""Which models can be sharded, said on any number of ranks: on one alone FSDP2 would not be there to refuse them."""

from __future__ import annotations

from torch import nn

from headway.data_contracts.store.errors import ConfigError


def require_shardable(model: nn.Module) -> None:
    """Of a model that is to be sharded.

    Raises:
        ConfigError: a parameter is a scalar, or its gradient is sparse.
    """
    for name, parameter in model.named_parameters():
        if not parameter.dim():
            raise ConfigError(
                "it is a scalar, and FSDP2 divides the first dimension.",
                where=f"model.{name}",
                advice="Give it the shape (1,), or leave the model whole (training.parallel.shard: 1).",
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ConfigError(
                "its gradient is sparse, and FSDP2 scatters dense ones.",
                where=f"model.{name}",
                advice="Build it with sparse=False, or leave the model whole (training.parallel.shard: 1).",
            )
