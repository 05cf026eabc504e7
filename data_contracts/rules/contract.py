"""A data contract: what rows must be, versioned, written in YAML by people.

Column constraints and rules speak one vocabulary (`Constraints`). A rule may *quarantine*: the rows that break it are
listed and left out of training, up to a limit, and everything else is judged on the rows that remain.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Set
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.data_contracts.rules.constraints import Constraints, Number, misplaced
from headway.data_contracts.rules.set_rules import (
    Balance,
    Drift,
    Freshness,
    Key,
    Leakage,
    Ordering,
    Slug,
    Splits,
    VolumeRule,
)
from headway.data_contracts.store.documents import Frozen, Severity
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.quarantine_limit import DEFAULT_LIMIT_RATIO
from headway.data_contracts.types.column_types import COMMON_NAMES, PLAIN_NAMES, UnknownType, arrow_type
from headway.data_contracts.types.strict_yaml import nearest, not_utf8, parse_yaml_model, read_text, refused_at
from headway.data_contracts.types.type_families import MEASURED, family

UNPARSABLE = "unparsable"
LABEL_LEAK = "label-leak"
LIKELY_LEAK = "likely-label-leak"
OWN_RULE_IDS = ("columns", "rows", "snapshot", "quarantine", "volume", UNPARSABLE, LABEL_LEAK, LIKELY_LEAK)
"""Names that a receipt gives to what every contract asks."""


class Column(Constraints):
    type: str = Field(
        description="Arrow type, exactly: int64, double, string, date32[day], timestamp[us], timestamp[us, tz=UTC], "
        "decimal128(18, 2), list<int32> and so on."
    )
    description: str = Field(default="", description="What it means, with its unit.")
    nullable: bool = Field(default=False, description="Whether a null is allowed.")
    unique: bool = Field(default=False, description="Whether no value may occur twice; nulls aside.")
    finite: bool = Field(default=True, description="Whether NaN and infinity are refused (float columns).")
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")

    @field_validator("type")
    @classmethod
    def _is_column_type(cls, name: str) -> str:
        try:
            arrow_type(name)
        except UnknownType as error:
            near = COMMON_NAMES.get(name.lower()) or next(iter(difflib.get_close_matches(name, PLAIN_NAMES, 1)), "")
            raise ValueError(f"{name!r} is no column type. Did you mean `{near}`?" if near else str(error)) from error
        return name

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        for problem in misplaced(self, self.type):
            raise ValueError(problem)
        return self


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
    def _has_a_constraint(self) -> Self:
        if self.is_empty and not (self.not_null or self.finite):
            raise ValueError(
                "the rule asks nothing: give not_null, finite, min, max, in, pattern, min_length, max_length, elements "
                "or no_pii"
            )
        if self.action == "quarantine" and self.max_failed_ratio:
            raise ValueError("max_failed_ratio goes with `action: fail`; quarantine has quarantine_limit_ratio")
        return self


class RowCount(Frozen):
    min: int = Field(default=1, ge=0, description="Least number of rows after quarantine.")
    max: int | None = Field(default=None, ge=0, description="Greatest number of rows after quarantine.")
    severity: Severity = Field(default="critical", description="What a break means: critical refuses the data.")

    @model_validator(mode="after")
    def _takes_some(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


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
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


RULE_SECTIONS = ("rules", "statistics", "keys", "ordering", "balance", "leakage", "drift", "freshness")
AnyRule = Rule | Statistic | Key | Ordering | Balance | Leakage | Drift | Freshness


class Contract(Frozen):
    LARGEST_INTEGER: ClassVar[int] = 10**40
    """Bounds are of the data's own types, decimals of 38 digits among them."""
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="Name of the contract: lower case and dashes.")
    version: str = Field(
        pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$",
        description="Semantic version; a change that refuses what was accepted before is a major one.",
    )
    description: str = Field(default="", description="What the data are, and who answers for them.")
    rows: RowCount = Field(default_factory=RowCount, description="How many rows there must be.")
    columns: dict[str, Column] = Field(min_length=1, description="Every column, by name.")
    extra_columns: bool = Field(default=False, description="Whether columns not named here are allowed.")
    rules: tuple[Rule, ...] = Field(default=(), description="Rules about single rows.")
    statistics: tuple[Statistic, ...] = Field(default=(), description="Rules about whole columns.")
    keys: tuple[Key, ...] = Field(default=(), description="Columns that together name a row.")
    ordering: tuple[Ordering, ...] = Field(default=(), description="Columns whose values are in order.")
    balance: tuple[Balance, ...] = Field(default=(), description="Shares of a label's classes.")
    splits: Splits | None = Field(default=None, description="Which split a row is in; by default the pipeline's own.")
    leakage: tuple[Leakage, ...] = Field(default=(), description="What no two splits may share.")
    volume: VolumeRule | None = Field(
        default=None, description="The number of rows against the last accepted snapshot."
    )
    drift: tuple[Drift, ...] = Field(default=(), description="Distributions against the last accepted snapshot.")
    freshness: tuple[Freshness, ...] = Field(default=(), description="How old the newest row may be.")
    suite: str | None = Field(
        default=None, description="A Great Expectations suite (JSON, 1.x) to be held as well, relative to this file."
    )
    quarantine_limit_ratio: float = Field(
        default=DEFAULT_LIMIT_RATIO,
        ge=0,
        le=1,
        description="Share of rows that may be quarantined; more refuses the data.",
    )

    unparsable_rows: Literal["refuse", "quarantine"] = Field(
        default="refuse",
        description="What becomes of a row of CSV or JSON lines that cannot be read as its columns' types: its file is "
        "refused, or the row is quarantined.",
    )

    @property
    def set_rules(self) -> tuple[Key | Ordering | Balance | Leakage | Drift | Freshness, ...]:
        return (*self.keys, *self.ordering, *self.balance, *self.leakage, *self.drift, *self.freshness)

    @property
    def texts(self) -> frozenset[str]:
        """Columns that are texts, whatever their values look like."""
        return frozenset(name for name, column in self.columns.items() if column.type == "string")

    @property
    def quarantined_types(self) -> dict[str, str] | None:
        """Types of the columns where rows that cannot be read as them are quarantined; None where they are refused."""
        is_kept = self.unparsable_rows == "quarantine"
        return {name: column.type for name, column in self.columns.items()} if is_kept else None

    @property
    def needs_baseline(self) -> bool:
        """Whether something is compared with the last accepted snapshot."""
        return bool(self.volume or self.drift)

    @model_validator(mode="after")
    def _rules_name_columns(self) -> Self:
        ids: set[str] = set()
        for section in RULE_SECTIONS:
            for place, rule in enumerate(getattr(self, section)):
                for problem in self._rule_problems(rule, ids):
                    raise refused_at((section, place), problem)
                ids.add(rule.id)
        if self.splits and self.splits.column and self.splits.column not in self.columns:
            raise refused_at(
                ("splits", "column"), f"splits speaks of `{self.splits.column}`, which is no column of the contract"
            )
        return self

    def _rule_problems(self, rule: AnyRule, ids_before: Set[str]) -> Iterator[str]:
        for column in _columns_of(rule):
            if column not in self.columns:
                close = nearest(column, set(self.columns)).rstrip(".")
                yield f"rule {rule.id} speaks of `{column}`, which is no column of the contract.{close}".rstrip(".")
                return
        if rule.id in ids_before or rule.id in OWN_RULE_IDS:
            yield f"two rules are called {rule.id}"
        for problem in _misplaced_rule(rule, self.columns):
            yield f"rule {rule.id}: {problem}"


def _columns_of(rule: AnyRule) -> tuple[str, ...]:
    return rule.columns if isinstance(rule, Key | Leakage | Drift) else (rule.column,)


def _misplaced_rule(rule: AnyRule, columns: dict[str, Column]) -> Iterator[str]:
    """What a rule asks of a column whose type does not have it."""
    for name in _columns_of(rule):
        type_name = columns[name].type
        kind = family(type_name)
        if isinstance(rule, Rule):
            yield from misplaced(rule, type_name)
        elif isinstance(rule, Freshness) and kind not in ("date", "timestamp"):
            yield f"freshness goes with dates and timestamps, not with {type_name}"
        elif isinstance(rule, Drift) and rule.of == "lengths" and kind not in MEASURED:
            yield f"lengths go with string, binary and lists, not with {type_name}"
        elif (
            isinstance(rule, Drift) and rule.of == "values" and kind in ("list", "binary", "date", "time", "timestamp")
        ):
            yield f"drift of values goes with numbers, strings and bool, not with {type_name}"
        elif isinstance(rule, Leakage) and rule.compare == "similar" and (len(rule.columns) > 1 or kind != "string"):
            yield "`compare: similar` goes with one column of type string"
        elif isinstance(rule, Balance | Key) and kind == "list":
            yield f"it goes with plain values, not with {type_name}"


@functools.lru_cache(maxsize=16)  # a flow run reads its contract at nine places, each 20 ms; it is frozen
def parse_contract(text: str, *, where: str) -> Contract:
    """Raises `ConfigError` naming the file, the line, the key and the nearest known name."""
    return parse_yaml_model(Contract, text, where=where)


def load_contract(path: Path) -> Contract:
    """Raises `ConfigError`: no such file, or not a contract."""
    return parse_contract(read_contract_text(path), where=str(path))


def read_contract_text(path: Path) -> str:
    """Raises `ConfigError`: no such file, or no text."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise ConfigError(not_utf8(error), where=str(path), advice="Save it as UTF-8.") from error
        reason = error.strerror
        raise ConfigError(
            f"the contract cannot be read ({reason}).", where=str(path), advice="Check `contract:`."
        ) from error
