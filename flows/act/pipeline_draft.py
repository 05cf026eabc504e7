"""A pipeline file drafted beside a contract: valid, small enough to run at once, with what to decide in comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.data_contracts.drafting.columns import Line, scalar
from headway.data_contracts.drafting.contract_draft import formatted
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile
from headway.data_contracts.sources.inference import GuessedSource
from headway.data_contracts.tables.source_spec import CsvOptions

ENOUGH_HELDOUT_ROWS = 200
MOST_TWENTIETHS = 6


def draft_pipeline(
    found: GuessedSource, profile: TableProfile, *, name: str, seen: str, contract: Path, is_partitioned: bool
) -> str:
    """The text of a pipeline file that lies beside its contract.

    Args:
        seen: what was profiled, in words.
        is_partitioned: whether folders such as `day=1` part the files.
    """
    is_text = not found.spec.is_table
    encoder = draft_encoder(profile, is_text=is_text)
    lines = [
        ("", f"Drafted from {seen}. `headway plan` says what a retrain would do; `headway retrain` does it."),
        (f"pipeline: {name}", ""),
        ("", ""),
        *_source(found, profile),
        ("", ""),
        (f"contract: {scalar(contract.name)}", "what the data must be; read it before the first retrain"),
        ("", ""),
        *_shards(encoder, profile, is_text=is_text, is_partitioned=is_partitioned),
        ("", ""),
        *_training(encoder),
        ("", ""),
        ("registry:", ""),
        (f"  model: {name}", "the name in MLflow's registry"),
    ]
    return formatted(lines)


def excluded_line(found: GuessedSource) -> str:
    number = found.num_excluded
    return f"{number:,} {'file of another kind is' if number == 1 else 'files of other kinds are'} left out"


def _source(found: GuessedSource, profile: TableProfile) -> Iterator[Line]:
    spec = found.spec
    suffix = excluded_line(found) if found.num_excluded else ""
    yield "source:", ""
    yield f"  format: {spec.format}", ""
    yield f"  uri: {scalar(spec.uri)}", ""
    yield f"  include: {scalar(list(spec.include))}", suffix
    if spec.exclude:
        yield f"  exclude: {scalar(list(spec.exclude))}", ""
    if spec.csv != CsvOptions():
        yield f"  csv: {scalar(spec.csv.model_dump(exclude_defaults=True))}", ""
    if spec.format in ("csv", "json-lines"):
        yield "  column_types:", "read from the values of the first file, and pinned: files carry none"
        for column in profile.columns:
            yield f"    {scalar(column.name)}: {scalar(column.type)}", ""


def _shards(
    encoder: Mapping[str, Any], profile: TableProfile, *, is_text: bool, is_partitioned: bool
) -> Iterator[Line]:
    yield "shards:", ""
    yield "  encoder:", "DECIDE: which columns the model reads" if not is_text else ""
    for name, value in encoder.items():
        yield f"    {name}: {scalar(value)}", ""
    if encoder["kind"] == "tabular" and "label" not in encoder:
        likely = likely_label(profile, encoder.get("categorical", ()))
        perhaps = f" (`{likely}`, perhaps)" if likely else ""
        yield (
            "    ",
            f"DECIDE: `label: COLUMN`, the column to predict{perhaps}; none is called label, target, class or y.",
        )
        yield "    ", "Take it out of `numeric` or `categorical`: a column goes to one place."
    if is_partitioned:
        yield "  group_by: folder", "a new partition costs its own size alone"
    yield from _split(profile, is_text=is_text)
    fraction = heldout_fraction(profile.num_rows)
    yield f"  heldout_fraction: {fraction}", "kept from training, by hash: what is held out once stays held out"


def heldout_fraction(num_rows: int) -> float:
    """As few rows as judge a model with some certainty, in steps of a twentieth; of a small table a third at most."""
    twentieths = -(-20 * ENOUGH_HELDOUT_ROWS // max(1, num_rows))
    return min(max(twentieths, 1), MOST_TWENTIETHS) / 20


def _split(profile: TableProfile, *, is_text: bool) -> Iterator[Line]:
    if is_text:
        return
    key = next((column.name for column in profile.columns if _may_split(column)), None)
    if key is not None:
        yield "  split_by: key", ""
        yield f"  split_key: {scalar(key)}", "DECIDE: or what rows share that belong together, such as a customer"
    else:
        yield "  split_by: row", "DECIDE: `key` with a split_key, if rows that belong together share one"


def _may_split(column: ColumnProfile) -> bool:
    """Whether the column tells rows apart and every row has a value that sharding can split by."""
    is_whole = column.is_unique and not column.num_nulls
    return is_whole and column.family in ("integer", "string") and not column.suspicions


def _training(encoder: Mapping[str, Any]) -> Iterator[Line]:
    yield "training:", ""
    yield f"  recipe: {{name: {recipe_for(encoder)}}}", "DECIDE: or package.module:Class of your own"
    yield "  max_steps: 1000", "DECIDE: enough to see it learn, not enough to serve"


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


def is_label_name(name: str) -> bool:
    return bool(LABEL_NAMES.fullmatch(name.lower()))


def _is_usable(column: ColumnProfile) -> bool:
    return bool(column.num_values) and not column.suspicions and not column.is_unique and not column.is_partition


def _is_tokens(column: ColumnProfile) -> bool:
    return column.family == "list" and "int" in column.type and column.low is not None and column.low >= 0


def _tabular(usable: Sequence[ColumnProfile]) -> dict[str, Any]:
    label = next((column for column in usable if is_label_name(column.name)), None)
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
