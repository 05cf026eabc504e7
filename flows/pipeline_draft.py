"""A pipeline file drafted beside a contract: valid, small enough to run at once, with what to decide in comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data_contracts.draft import laid_out
from data_contracts.draft_columns import Line, scalar
from data_contracts.profile import ColumnProfile, Profile
from data_contracts.source_guess import GuessedSource
from data_contracts.source_spec import CsvOptions
from flows.encoder_draft import draft_encoder, likely_label, recipe_for


def draft_pipeline(
    found: GuessedSource, profile: Profile, *, name: str, seen: str, contract: Path, is_partitioned: bool
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
    return laid_out(lines)


def left_out_line(found: GuessedSource) -> str:
    number = found.num_left_out
    return f"{number:,} {'file of another kind is' if number == 1 else 'files of other kinds are'} left out"


def _source(found: GuessedSource, profile: Profile) -> Iterator[Line]:
    spec = found.spec
    aside = left_out_line(found) if found.num_left_out else ""
    yield "source:", ""
    yield f"  format: {spec.format}", ""
    yield f"  uri: {scalar(spec.uri)}", ""
    yield f"  include: {scalar(list(spec.include))}", aside
    if spec.exclude:
        yield f"  exclude: {scalar(list(spec.exclude))}", ""
    if spec.csv != CsvOptions():
        yield f"  csv: {scalar(spec.csv.model_dump(exclude_defaults=True))}", ""
    if spec.format in ("csv", "json-lines"):
        yield "  column_types:", "read from the values of the first file, and pinned: files carry none"
        for column in profile.columns:
            yield f"    {scalar(column.name)}: {scalar(column.type)}", ""


def _shards(encoder: Mapping[str, Any], profile: Profile, *, is_text: bool, is_partitioned: bool) -> Iterator[Line]:
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
    yield "  heldout_fraction: 0.05", "kept from training, by hash: what is held out once stays held out"


def _split(profile: Profile, *, is_text: bool) -> Iterator[Line]:
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
