"""A pipeline file drafted beside a contract: valid, small enough to run at once, with what to decide in comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.data_contracts.drafting.columns import Line, scalar
from headway.data_contracts.drafting.contract_draft import formatted
from headway.data_contracts.drafting.leaking_inputs import NO_LEAKS, LeakingInputs
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile, is_key_name
from headway.data_contracts.sources.inference import GuessedSource
from headway.data_contracts.tables.source_spec import CsvOptions
from headway.flows.act.encoder_draft import ExcludedColumn, inputs_of, likely_labels, recipe_for
from headway.flows.act.table_training import table_training
from headway.training.data.encode.numeric_block import MOST_PARTS

ENOUGH_HELDOUT_ROWS = 400
MOST_TWENTIETHS = 6
FEW_HELDOUT_ROWS = 150
"""Of fewer, all rows judge: each by a model that never saw it."""
FOLDS = 5
FEW_BESIDE_FOLDS = 10
"""Rows held out beside folds, about: from the model that is registered, to compare it with one that has none."""


def draft_pipeline(
    found: GuessedSource,
    profile: TableProfile,
    encoder: Mapping[str, Any],
    *,
    name: str,
    seen: str,
    contract: Path,
    is_partitioned: bool,
    excluded: Sequence[ExcludedColumn],
    leaks: LeakingInputs = NO_LEAKS,
) -> str:
    """The text of a pipeline file that lies beside its contract.

    Args:
        encoder: the fields of `shards.encoder`.
        seen: what was profiled, in words.
        is_partitioned: whether folders such as `day=1` part the files.
        excluded: columns that the model would not read.
        leaks: inputs that alone tell the label.
    """
    is_text = not found.spec.is_table
    lines = [
        ("", f"Drafted from {seen}. `headway plan` says what a retrain would do; `headway retrain` does it."),
        (f"pipeline: {name}", ""),
        ("", ""),
        *_source(found, profile),
        ("", ""),
        (f"contract: {scalar(contract.name)}", "what the data must be; read it before the first retrain"),
        ("", ""),
        *_shards(encoder, profile, excluded, is_text=is_text, is_partitioned=is_partitioned, leaks=leaks),
        ("", ""),
        *_training(encoder, profile.num_rows),
        ("", ""),
        *_evaluation(encoder, profile.num_rows),
        ("registry:", ""),
        (f"  model: {name}", "the name in MLflow's registry"),
    ]
    return formatted(lines)


NOTES = {
    "label": "DECIDE: the column to predict",
    "label_kind": "`class` or `number`",
    "missing": "a gap among the numbers becomes the mean of training",
    "times": "how far through the training rows, and hour, weekday and season where they vary",
}


def in_words(excluded: Iterable[ExcludedColumn]) -> str:
    """By reason, in the order of the first column of each."""
    by_reason: dict[str, list[str]] = {}
    for each in excluded:
        by_reason.setdefault(each.reason, []).append(each.column)
    return "; ".join(f"{', '.join(columns)} ({reason})" for reason, columns in by_reason.items())


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
    if spec.is_text_table:
        yield "  column_types:", "read from the values of all files, and pinned: files carry none"
        for column in profile.columns:
            yield f"    {scalar(column.name)}: {scalar(column.type)}", ""


def _shards(
    encoder: Mapping[str, Any],
    profile: TableProfile,
    excluded: Sequence[ExcludedColumn],
    *,
    is_text: bool,
    is_partitioned: bool,
    leaks: LeakingInputs,
) -> Iterator[Line]:
    yield "shards:", ""
    yield "  encoder:", "DECIDE: which columns the model reads" if not is_text else ""
    for name, value in encoder.items():
        yield f"    {name}: {scalar(value)}", NOTES.get(name, "")
    if excluded:
        yield "    ", f"Left out: {in_words(excluded)}."
    if encoder["kind"] == "tabular":
        for name in inputs_of(encoder):
            if named := leaks.named(name):
                yield "    ", f"LEAK? {name} {named}. DECIDE: take it out, if it is not known when the model is asked."
    if encoder["kind"] == "tabular" and "label" not in encoder:
        likely = next(likely_labels(profile, encoder), None)
        perhaps = f" (`{likely}`, perhaps)" if likely else ""
        yield (
            "    ",
            f"DECIDE: `label: COLUMN`, the column to predict{perhaps}; no name tells.",
        )
        yield "    ", "Take it out of `numeric` or `categorical`: a column goes to one place."
    if is_partitioned:
        yield "  group_by: folder", "a new partition costs its own size alone"
    yield from _split(profile, is_text=is_text)
    fraction = drafted_fraction(profile.num_rows, is_table=encoder["kind"] == "tabular")
    yield f"  heldout_fraction: {fraction}", "kept from training, by hash: what is held out once stays held out"


def drafted_fraction(num_rows: int, *, is_table: bool) -> float:
    """The share of rows that a draft holds out."""
    if not drafted_folds(num_rows, is_table=is_table):
        return heldout_fraction(num_rows)
    # What it does not train on tells little beside folds, and costs a small table's model most.
    twentieths = -(-20 * FEW_BESIDE_FOLDS // max(1, num_rows))
    return min(max(twentieths, 2), MOST_TWENTIETHS) / 20


def drafted_folds(num_rows: int, *, is_table: bool) -> int:
    """Parts of cross-validation; 0: a share that is held out holds enough rows to judge by."""
    return FOLDS if is_table and num_rows * heldout_fraction(num_rows) < FEW_HELDOUT_ROWS else 0


def heldout_fraction(num_rows: int) -> float:
    """As few rows as judge a model with some certainty, in steps of a twentieth; of a small table a third at most."""
    twentieths = -(-20 * ENOUGH_HELDOUT_ROWS // max(1, num_rows))
    return min(max(twentieths, 1), MOST_TWENTIETHS) / 20


def _evaluation(encoder: Mapping[str, Any], num_rows: int) -> Iterator[Line]:
    if folds := drafted_folds(num_rows, is_table=encoder["kind"] == "tabular"):
        yield "evaluation:", ""
        yield (
            f"  folds: {folds}",
            f"few rows: all of them judge, each by one of {folds} further models that never saw it",
        )
        yield "", ""


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
    is_whole = column.is_unique and not column.num_nulls and is_key_name(column.name)
    return is_whole and column.family in ("integer", "string") and not column.suspicions


def _training(encoder: Mapping[str, Any], num_rows: int) -> Iterator[Line]:
    yield "training:", ""
    if encoder["kind"] != "tabular":
        yield f"  recipe: {{name: {recipe_for(encoder)}}}", "DECIDE: or package.module:Class of your own"
        yield "  max_steps: 1000", "DECIDE: enough to see it learn, not enough to serve"
        return
    num_train = max(1, round(num_rows * (1 - drafted_fraction(num_rows, is_table=True))))
    num_numeric = len(encoder.get("numeric", ())) + MOST_PARTS * len(encoder.get("times", ()))
    drafted = table_training(num_train, num_numeric)
    yield "  ", "Batch, length, model and optimizer are drafted by the number of rows."
    yield "  ", "Boosted trees in their place: `recipe: {name: gradient-boosting}`, and no other line under `training`."
    recipe = f"{{name: {recipe_for(encoder)}, model: {scalar(drafted.model)}}}"
    yield f"  recipe: {recipe}", "DECIDE: or package.module:Class of your own"
    yield f"  optimizer: {{kind: adamw, lr: {drafted.lr}, weight_decay: {drafted.weight_decay}}}", ""
    yield f"  schedule: {{kind: cosine, warmup_steps: {drafted.warmup_steps}}}", ""
    suffix = f"about {drafted.steps(num_train):,} steps on today's {num_train:,} training rows; more rows, more steps"
    yield f"  max_epochs: {drafted.epochs}", suffix
    yield f"  global_batch_sequences: {drafted.batch}", "rows of a step"
    yield f"  micro_batch_sequences: {drafted.batch // 2}", "two parts, so that two ranks can share a step"
