"""What tells rows apart, whatever their shares: the rule by which a split puts each row on a side."""

from __future__ import annotations

from collections.abc import Mapping

from headway.data_contracts.store.documents import Json
from headway.data_contracts.types.column_types import INTEGER_NAMES
from headway.training.config.shards import ShardSpec

TRUTHS = {each: (each, each.capitalize(), each.upper()) for each in ("true", "false")}
SHARES = ("heldout_fraction", "validation_fraction", "split")


def splitting_rule(shards: ShardSpec) -> dict[str, Json]:
    # Neither a share nor a list tells other rows apart: what has ranked does not evaluate when either grows.
    rule = {name: value for name, value in shards.splitting.items() if name not in SHARES}
    return rule if shards.split is None else {**rule, "column": shards.split.column}


def key_type(shards: ShardSpec, columns: Mapping[str, str]) -> str:
    """What the values of the key are by which rows are told apart; empty where no key does, or nobody knows.

    Values of another type have other hashes, such as `"7"` and 7, or one moment in other units.

    Args:
        columns: of the source, name to type.
    """
    name = columns.get(shards.split_key or "", "")
    return (
        "whole numbers" if name in INTEGER_NAMES else name.partition(", tz=")[0].removesuffix("]").replace("[", " in ")
    )


def spellings(text: str) -> set[str]:
    """Texts that a value of a given split may have, listed as this one: a truth is read from several."""
    return {text, *TRUTHS.get(text.lower(), ())}
