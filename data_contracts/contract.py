"""A data contract: what rows must be, versioned, written in YAML by people.

Column constraints and rules speak one vocabulary (`Constraints`). A rule may *quarantine*: the rows that break it are
listed and left out of training, up to a limit, and everything else is judged on the rows that remain.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from data_contracts.documents import Frozen, Severity
from data_contracts.errors import ConfigError
from data_contracts.strict_yaml import parse_yaml_model

Number = int | float
Scalar = bool | int | float | str
ColumnType = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float",
    "double",
    "string",
    "binary",
    "date32[day]",
    "timestamp[ms]",
    "timestamp[us]",
    "timestamp[ns]",
]
FLOAT_TYPES = ("float", "double")
Slug = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of the rule in receipts: lower case and dashes.")


class Constraints(Frozen):
    """What one value must be. A null breaks none of these; `nullable` and `not_null` speak of nulls."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    min: Number | None = Field(default=None, description="Least value, inclusive. NaN breaks it.")
    max: Number | None = Field(default=None, description="Greatest value, inclusive. NaN breaks it.")
    one_of: tuple[Scalar, ...] | None = Field(default=None, alias="in", min_length=1, description="Allowed values.")
    pattern: str | None = Field(default=None, description="Regular expression (RE2) that the whole text matches.")
    min_length: int | None = Field(default=None, ge=0, description="Least number of characters.")
    max_length: int | None = Field(default=None, ge=0, description="Greatest number of characters.")

    @field_validator("pattern")
    @classmethod
    def _is_regular_expression(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression ({error})") from error
        return pattern

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        for low, high in ((self.min, self.max), (self.min_length, self.max_length)):
            if low is not None and high is not None and low > high:
                raise ValueError(f"the lower bound {low} is above the upper bound {high}")
        return self


class Column(Constraints):
    type: ColumnType = Field(description="Arrow type, exactly.")
    description: str = Field(default="", description="What it means, with its unit.")
    nullable: bool = Field(default=False, description="Whether a null is allowed.")
    unique: bool = Field(default=False, description="Whether no value may occur twice; nulls aside.")
    finite: bool = Field(default=True, description="Whether NaN and infinity are refused (float columns).")
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")


class Rule(Constraints):
    id: str = Slug
    column: str = Field(description="The column it speaks of.")
    description: str = Field(default="", description="Why the rule is there, for the report.")
    not_null: bool = Field(default=False, description="Whether a null breaks the rule.")
    finite: bool = Field(default=False, description="Whether NaN and infinity break the rule.")
    action: Literal["fail", "quarantine"] = Field(
        default="fail", description="`quarantine` leaves out the rows that break it; `fail` counts against the data."
    )
    max_failed_ratio: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the rows with a value that may break it."
    )
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        bounds = (self.min, self.max, self.one_of, self.pattern, self.min_length, self.max_length)
        if not (self.not_null or self.finite or any(bound is not None for bound in bounds)):
            raise ValueError(
                "the rule asks nothing: give not_null, finite, min, max, in, pattern, min_length or max_length"
            )
        if self.action == "quarantine" and self.max_failed_ratio:
            raise ValueError("max_failed_ratio goes with `action: fail`; quarantine has quarantine_limit_ratio")
        return self


class RowCount(Frozen):
    min: int = Field(default=1, ge=0, description="Least number of rows after quarantine.")
    max: int | None = Field(default=None, ge=0, description="Greatest number of rows after quarantine.")
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")


class Statistic(Frozen):
    """A bound on one figure of a whole column."""

    id: str = Slug
    column: str = Field(description="The column it speaks of.")
    statistic: Literal["mean", "median", "stdev", "sum", "min", "max"] = Field(description="The figure.")
    description: str = Field(default="", description="Why the rule is there, for the report.")
    min: Number | None = Field(default=None, description="Least value, inclusive.")
    max: Number | None = Field(default=None, description="Greatest value, inclusive.")
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("the rule asks nothing: give min or max")
        return self


class Contract(Frozen):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of the contract: lower case and dashes.")
    version: str = Field(
        pattern=r"^\d+\.\d+\.\d+$",
        description="Semantic version; a change that refuses what was accepted before is a major one.",
    )
    description: str = Field(default="", description="What the data are, and who answers for them.")
    rows: RowCount = Field(default_factory=RowCount, description="How many rows there must be.")
    columns: dict[str, Column] = Field(min_length=1, description="Every column, by name.")
    extra_columns: bool = Field(default=False, description="Whether columns not named here are allowed.")
    rules: tuple[Rule, ...] = Field(default=(), description="Rules about single rows.")
    statistics: tuple[Statistic, ...] = Field(default=(), description="Rules about whole columns.")
    quarantine_limit_ratio: float = Field(
        default=0.01, ge=0, le=1, description="Share of rows that may be quarantined; more refuses the data."
    )

    @model_validator(mode="after")
    def _rules_speak_of_columns(self) -> Self:
        rules: tuple[Rule | Statistic, ...] = (*self.rules, *self.statistics)
        ids = [rule.id for rule in rules]
        for rule in rules:
            if rule.column not in self.columns:
                raise ValueError(f"rule {rule.id} speaks of `{rule.column}`, which is no column of the contract")
            if ids.count(rule.id) > 1:
                raise ValueError(f"two rules are called {rule.id}")
        return self


def parse_contract(text: str, *, where: str) -> Contract:
    """Raises `ConfigError` naming the file, the line, the key and the nearest known name."""
    return parse_yaml_model(Contract, text, where=where)


def load_contract(path: Path) -> Contract:
    """Raises `ConfigError`: no such file, or not a contract."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"the contract cannot be read ({reason}).", where=str(path)) from error
    return parse_contract(text, where=str(path))
