"""Columns that a pipeline file names, held against the contract that lists them: known before a byte is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS
from headway.data_contracts.types.strict_yaml import Location, nearest, refused_values
from headway.flows.config.encodable_columns import unfit_columns
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.training.config.encoder_specs import ImageEncoderSpec, TabularEncoderSpec, TokenSpec
from headway.training.data.shards.source_values import PATH
from headway.training.recipes.built_in import BUILT_IN

Named = tuple[Location, str]
"""Where a column is named, and its name."""
ENCODER: Final = ("shards", "encoder")


def require_named_columns(pipeline: PipelineSpec, contract: Contract, path: Path, *, is_data_only: bool) -> None:
    """Refuse a column that no accepted data can have.

    A contract with `extra_columns` does not say which there are; an encoder of the user's own says nothing at all.

    Args:
        path: the pipeline file, as `load_pipeline` read it.
        is_data_only: whether nothing is to be trained, so that what to read and to predict may still be left open.

    Raises:
        ConfigError: a column that the contract does not list, one whose type or nulls the encoder refuses, or none to
            predict where the recipe needs one: all of them, with line, key and nearest name.
    """
    named = list(_cut_by(pipeline))
    is_stated = not is_data_only or "encoder" in pipeline.shards.model_fields_set
    if is_stated:
        named += _read(pipeline)
    problems = [*_unknown(pipeline, contract, named)]
    if not is_data_only:
        problems += _unlabelled(pipeline, contract)
    if pipeline.source.is_table and is_stated:
        problems += unfit_columns(pipeline.shards.encoder, contract)
    if problems:
        raise refused_values(path.read_text(encoding="utf-8"), problems, str(path))


def _unknown(pipeline: PipelineSpec, contract: Contract, named: Iterable[Named]) -> Iterator[tuple[Location, str]]:
    is_table = pipeline.source.is_table
    if is_table and contract.extra_columns:
        return
    known = set(contract.columns if is_table else TEXT_COLUMNS)
    lister = f"the contract {pipeline.contract}" if is_table else "a source of text files"
    written = pipeline.shards.encoder.model_fields_set
    for location, name in named:
        if name not in known and not (location[0] == "evaluation" and name == PATH):
            is_default = location[:2] == ENCODER and location[2] not in written
            reader = f", which the encoder {pipeline.shards.encoder.kind} reads by default" if is_default else ""
            yield location, f"{lister} has no column `{name}`{reader}.{nearest(name, known)}"


def _read(pipeline: PipelineSpec) -> Iterator[Named]:
    """Columns that become shards."""
    encoder = pipeline.shards.encoder
    if isinstance(encoder, TokenSpec):
        yield (*ENCODER, "column"), encoder.column
    elif isinstance(encoder, ImageEncoderSpec):
        for name in encoder.columns:
            yield (*ENCODER, "pixels"), name
        yield (*ENCODER, "label"), encoder.label
    elif isinstance(encoder, TabularEncoderSpec):
        for block, names in (("numeric", encoder.numeric), ("categorical", encoder.categorical)):
            for place, name in enumerate(names):
                yield (*ENCODER, block, place), name
        if encoder.label is not None:
            yield (*ENCODER, "label"), encoder.label


def _cut_by(pipeline: PipelineSpec) -> Iterator[Named]:
    """Columns that decide what is held out, or which slice of it a row is in."""
    if pipeline.shards.split_key is not None:
        yield ("shards", "split_key"), pipeline.shards.split_key
    if pipeline.shards.split is not None and pipeline.shards.split.column is not None:
        yield ("shards", "split", "column"), pipeline.shards.split.column
    for place, by in enumerate(pipeline.evaluation.slices):
        yield ("evaluation", "slices", place, "column"), by.column


def _unlabelled(pipeline: PipelineSpec, contract: Contract) -> Iterator[tuple[Location, str]]:
    """Every recipe for tables that comes with Headway predicts a column."""
    encoder, recipe = pipeline.shards.encoder, pipeline.training.recipe.name
    if isinstance(encoder, TabularEncoderSpec) and encoder.label is None and recipe in BUILT_IN:
        read = {name for _, name in _read(pipeline)}
        left = [name for name in contract.columns if name not in read]
        choice = f"one of {', '.join(left)}, or a column taken out of numeric or categorical" if left else "a column"
        yield (
            ENCODER,
            f"no column to predict, and the recipe {recipe} needs one. Give `label: COLUMN`: {choice}.",
        )
