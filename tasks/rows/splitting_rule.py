"""What tells rows apart, whatever their shares: the rule by which a split puts each row on a side."""

from __future__ import annotations

from headway.data_contracts.store.documents import Json
from headway.training.config.shards import ShardSpec

SHARES = ("heldout_fraction", "validation_fraction", "split")


def splitting_rule(shards: ShardSpec) -> dict[str, Json]:
    # Neither a share nor a list tells other rows apart: what has ranked does not evaluate when either grows.
    rule = {name: value for name, value in shards.splitting.items() if name not in SHARES}
    return rule if shards.split is None else {**rule, "column": shards.split.column}
