"""Columns that a pipeline file names, held against the contract that lists them, with their types and nulls.

So it is known before a byte is read, where an encoder itself would find out after minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from headway.data_contracts.rules.contract import Column, Contract
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS
from headway.data_contracts.types.strict_yaml import Location, nearest, refused_values
from headway.data_contracts.types.type_families import Family, element_type, family
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.training.config.encoder_specs import (
    BytePairSpec,
    EncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
    TokenSpec,
)
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
        for block in ("numeric", "times", "categorical"):
            for place, name in enumerate(getattr(encoder, block)):
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


Problem = tuple[Location, str]
NUMBERS: Final[tuple[Family, ...]] = ("bool", "integer", "float", "decimal")
CATEGORIES: Final[tuple[Family, ...]] = ("bool", "integer", "string")
TIMES: Final[tuple[Family, ...]] = ("date", "timestamp")
TEXTS: Final[tuple[Family, ...]] = ("string", "binary")


def unfit_columns(encoder: EncoderSpec, contract: Contract) -> Iterator[Problem]:
    """What the encoder would refuse of data that keep the contract, by the place of the column in the pipeline file.

    Columns that the contract does not list are passed over. An encoder of the user's own says nothing of its columns.
    """
    known = contract.columns
    if isinstance(encoder, TabularEncoderSpec):
        for place, name in enumerate(encoder.numeric):
            if name in known:
                yield from _number(
                    (*ENCODER, "numeric", place), name, contract, allows_missing=encoder.missing == "mean"
                )
        for place, name in enumerate(encoder.times):
            if name in known:
                yield from _time((*ENCODER, "times", place), name, contract, allows_missing=encoder.missing == "mean")
        for place, name in enumerate(encoder.categorical):
            if name in known and family(known[name].type) not in CATEGORIES:
                what = "a category is a whole number, a boolean or a text"
                yield (*ENCODER, "categorical", place), _other(name, known[name], what, "List it under `numeric`")
        if encoder.label in known:
            yield from _label(encoder, contract)
    elif isinstance(encoder, ImageEncoderSpec) and encoder.label in known:
        yield from _class((*ENCODER, "label"), encoder.label, contract, "Give a column of classes")
    elif isinstance(encoder, BytePairSpec) and encoder.column in known:
        column = known[encoder.column]
        if family(column.type) not in TEXTS:
            yield (*ENCODER, "column"), _other(encoder.column, column, "tokens are made of text", "Name a text column")
    elif isinstance(encoder, TokenIdsSpec) and encoder.column in known:
        column = known[encoder.column]
        if family(column.type) != "list" or family(element_type(column.type)) != "integer":
            what = "token ids are lists of whole numbers"
            yield (*ENCODER, "column"), _other(encoder.column, column, what, "Name a column of such lists")


def _label(encoder: TabularEncoderSpec, contract: Contract) -> Iterator[Problem]:
    location, name = (*ENCODER, "label"), str(encoder.label)
    if encoder.predicts_class:
        yield from _class(location, name, contract, "To predict a number, say `label_kind: number`")
        return
    column = contract.columns[name]
    if family(column.type) not in NUMBERS:
        yield (
            location,
            _other(name, column, "what is predicted is a number", "To predict a class, leave out `label_kind`"),
        )
    else:
        yield from _missing(location, name, contract, "a row without it trains nothing", "")


def _class(location: Location, name: str, contract: Contract, advice: str) -> Iterator[Problem]:
    column = contract.columns[name]
    if family(column.type) not in CATEGORIES:
        yield location, _other(name, column, "a class is a whole number, a boolean or a text", advice)
    else:
        yield from _missing(location, name, contract, "a row without it trains nothing", "")


def _number(location: Location, name: str, contract: Contract, *, allows_missing: bool) -> Iterator[Problem]:
    column = contract.columns[name]
    if family(column.type) not in NUMBERS:
        yield location, _other(name, column, "this is no number", "List a text under `categorical`, or leave it out")
    elif not allows_missing:
        yield from _missing(location, name, contract, "no number stands for it", ", or say `missing: mean`")


def _time(location: Location, name: str, contract: Contract, *, allows_missing: bool) -> Iterator[Problem]:
    column = contract.columns[name]
    if family(column.type) not in TIMES:
        yield (
            location,
            _other(name, column, "this is neither a date nor a time", "Give it such a type, or leave it out"),
        )
    elif not allows_missing:
        yield from _missing(location, name, contract, "no moment stands for it", ", or say `missing: mean`")


def _missing(location: Location, name: str, contract: Contract, why: str, otherwise: str) -> Iterator[Problem]:
    """Nulls, and NaN among floats, that the contract lets in and no rule of its leaves out."""
    column = contract.columns[name]
    excluded = [rule for rule in contract.rules if rule.column == name and rule.action == "quarantine"]
    may_be_null = column.nullable and not any(rule.not_null for rule in excluded)
    may_be_nan = family(column.type) == "float" and not column.finite and not any(rule.finite for rule in excluded)
    if may_be_null or may_be_nan:
        asked, allowed = ("not_null", "null") if may_be_null else ("finite", "NaN or infinite")
        key = "nullable" if may_be_null else "finite: false"
        rule = f"{{id: {asked.replace('_', '-')}, column: {name}, {asked}: true, action: quarantine}}"
        fact = f"the contract lets `{name}` be {allowed}, and {why}"
        limit = f"`quarantine_limit_ratio` ({contract.quarantine_limit_ratio:g} so far) of their share or more"
        out = f"leave such rows out by a rule, {rule}, and a {limit}"
        yield location, f"{fact}. Take `{key}` off the column, or {out}{otherwise}."


def _other(name: str, column: Column, what: str, advice: str) -> str:
    return f"`{name}` is {column.type} by the contract, and {what}. {advice}."
