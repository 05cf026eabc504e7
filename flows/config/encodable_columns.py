"""Columns that an encoder reads, held against the types and nulls that the contract lets in: known before a byte is
read, where the encoder itself would find out after minutes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headway.data_contracts.rules.contract import Column, Contract
from headway.data_contracts.types.strict_yaml import Location
from headway.data_contracts.types.type_families import Family, element_type, family
from headway.training.config.encoder_specs import (
    BytePairSpec,
    EncoderSpec,
    ImageEncoderSpec,
    TabularEncoderSpec,
    TokenIdsSpec,
)

Problem = tuple[Location, str]
ENCODER: Final = ("shards", "encoder")
NUMBERS: Final[tuple[Family, ...]] = ("bool", "integer", "float", "decimal")
CATEGORIES: Final[tuple[Family, ...]] = ("bool", "integer", "string")
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
