"""Which encoder fits a profile: texts and lists of tokens become sequences, other columns become blocks of numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile

RECIPES = {
    "byte-pair": "language-model",
    "token-ids": "language-model",
    "tabular": "tabular-classifier",
}
"""Kind of encoder to the recipe that comes with Headway, where it is no number that is predicted."""
LABEL_NAMES = re.compile(r"(.*_)?(label|labels|target|class|outcome|y)")
LONG_TEXT_CHARS = 200
"""Longer texts are something to read, shorter ones are names and codes."""


def recipe_for(encoder: Mapping[str, Any]) -> str:
    """The recipe that comes with Headway for `shards.encoder`."""
    return "tabular-regressor" if encoder.get("label_kind") == "number" else RECIPES[encoder["kind"]]


def draft_encoder(profile: TableProfile, *, is_text: bool) -> dict[str, Any]:
    """The fields of `shards.encoder`.

    Columns under suspicion and keys are left out: a person puts them in. Only where nothing else is there, the first
    column stands for the choice that is to be made.
    """
    usable = [column for column in profile.columns if _is_usable(column)]
    if is_text:
        return {"kind": "byte-pair", "vocab_size": 2048, "sequence_tokens": 256}
    tokens = [column for column in usable if _is_tokens(column)]
    if tokens:
        highest = max(tokens, key=lambda column: column.max_length or 0)
        return {"kind": "token-ids", "column": highest.name, "vocab_size": int(highest.high or 0) + 1}
    texts = [column for column in usable if column.family == "string" and (column.max_length or 0) > LONG_TEXT_CHARS]
    if texts:
        longest = max(texts, key=lambda column: column.max_length or 0)
        return {"kind": "byte-pair", "column": longest.name, "vocab_size": 2048, "sequence_tokens": 256}
    return _tabular(usable) or {"kind": "tabular", "categorical": [profile.columns[0].name]}


def _is_usable(column: ColumnProfile) -> bool:
    return bool(column.num_values) and not column.suspicions and not column.is_unique


def _is_tokens(column: ColumnProfile) -> bool:
    return column.family == "list" and "int" in column.type and column.low is not None and column.low >= 0


def _tabular(usable: Sequence[ColumnProfile]) -> dict[str, Any]:
    label = next((column for column in usable if LABEL_NAMES.fullmatch(column.name.lower())), None)
    features = [column for column in usable if column is not label]
    numeric = [column for column in features if column.family in ("integer", "float", "decimal") and not column.values]
    categorical = [column for column in features if column.values]
    if not numeric and not categorical:
        return {}
    fields: dict[str, Any] = {
        "kind": "tabular",
        "numeric": [column.name for column in numeric],
        "categorical": [column.name for column in categorical],
    }
    if label is not None:
        fields |= {"label": label.name, "label_kind": "class" if label.values or label.family == "string" else "number"}
    if any(column.num_nulls or column.num_not_finite for column in numeric):
        fields["missing"] = "mean"
    return fields


def likely_label(profile: TableProfile, categorical: Sequence[str]) -> str:
    """The last of these columns that has two values; empty where none has."""
    pairs = [column.name for column in profile.columns if column.name in categorical and len(column.values) == 2]
    return pairs[-1] if pairs else ""
