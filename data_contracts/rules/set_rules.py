"""Rules of a contract that speak of the whole set of rows: keys, order, balance, leakage, volume, drift, freshness."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen, Severity

Slug = Field(
    pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=80, description="Name of the rule in receipts: lower case and dashes."
)
Why: Any = Field(default="", description="Why the rule is there, for the report.")
Weight: Any = Field(default="critical", description="What a break means: critical refuses the data.")


class Key(Frozen):
    """Columns whose values together never occur twice. A row with a null among them has no key."""

    id: str = Slug
    columns: tuple[str, ...] = Field(min_length=1, description="The columns of the key.")
    description: str = Why
    severity: Severity = Weight


class Ordering(Frozen):
    """A column that never goes back; nulls aside."""

    id: str = Slug
    column: str = Field(description="The column whose values are in order.")
    within: Literal["file", "all"] = Field(
        default="file", description="`file`: inside each file; `all`: also from each file to the next, by path."
    )
    strict: bool = Field(default=False, description="Whether a value may not even repeat the one before it.")
    descending: bool = Field(default=False, description="Whether values go down instead of up.")
    description: str = Why
    severity: Severity = Weight


class Balance(Frozen):
    """Shares of a label's classes among the rows that have one. A class listed under the column's `in` must occur."""

    id: str = Slug
    column: str = Field(description="The label.")
    min_share: float = Field(default=0.0, ge=0, le=1, description="Least share of the rarest class.")
    max_share: float = Field(default=1.0, gt=0, le=1, description="Greatest share of the commonest class.")
    description: str = Why
    severity: Severity = Weight

    @model_validator(mode="after")
    def _has_a_constraint(self) -> Self:
        if self.min_share == 0 and self.max_share == 1:
            raise ValueError("the rule asks nothing: give min_share or max_share")
        if self.min_share > self.max_share:
            raise ValueError(f"min_share {self.min_share} is above max_share {self.max_share}")
        return self


class Splits(Frozen):
    """Which split a row is in. Without this, the pipeline's own split says it."""

    column: str = Field(default="", description="A column that holds the split's name.")
    sql: str = Field(
        default="",
        description="A DuckDB expression over the columns that gives the split's name. `headway_split(text)` in it "
        "is the pipeline's own split of a key.",
    )

    @model_validator(mode="after")
    def _is_stated_once(self) -> Self:
        if bool(self.column) == bool(self.sql):
            raise ValueError("give either column or sql")
        return self


class Leakage(Frozen):
    """Values, together, that no two splits share. A row with a null among them shares nothing."""

    id: str = Slug
    columns: tuple[str, ...] = Field(min_length=1, description="A key, or the content itself.")
    compare: Literal["exact", "normalized", "similar"] = Field(
        default="exact",
        description="`normalized`: letters and digits of texts, whatever their case, and six digits of a float; "
        "`similar`: texts that share most runs of words (MinHash).",
    )
    min_similarity: float = Field(
        default=0.8,
        ge=0.5,
        le=1,
        description="For `similar`: least share of runs of words that two texts have in common.",
    )
    max_failed_ratio: float = Field(default=0.0, ge=0, lt=1, description="Share of the rows that may be shared.")
    description: str = Why
    severity: Severity = Weight


class VolumeRule(Frozen):
    """The number of rows against that of the last accepted snapshot."""

    min_ratio: float = Field(default=0.5, ge=0, description="Least ratio to the accepted number of rows.")
    max_ratio: float = Field(default=2.0, gt=0, description="Greatest ratio to the accepted number of rows.")
    severity: Severity = Weight

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.min_ratio > self.max_ratio:
            raise ValueError(f"min_ratio {self.min_ratio} is above max_ratio {self.max_ratio}")
        return self


class Drift(Frozen):
    """How far a column's distribution may be from the last accepted snapshot's, in the same bins.

    Bins of numbers are cut once, and anew only when one of them has come to hold most of the values.
    """

    id: str = Slug
    columns: tuple[str, ...] = Field(min_length=1, description="Columns, each checked by itself.")
    of: Literal["values", "lengths"] = Field(
        default="values",
        description="`values`: of numbers, in bins; of texts and bools, by category; `lengths`: of texts, binaries or "
        "lists.",
    )
    max_psi: float | None = Field(
        default=None, gt=0, description="Greatest population stability index; above 0.2 is commonly called a shift."
    )
    max_js: float | None = Field(
        default=None, gt=0, le=1, description="Greatest Jensen-Shannon divergence in bits, from 0 to 1."
    )
    num_bins: int = Field(default=20, ge=2, le=100, description="Bins of numbers, of about as many rows each.")
    description: str = Why
    severity: Severity = Weight

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.max_psi is None and self.max_js is None:
            raise ValueError("the rule asks nothing: give max_psi or max_js")
        return self


class Freshness(Frozen):
    """How old the newest row may be. Judged anew whenever the data pass the gate, by the clock then."""

    id: str = Slug
    column: str = Field(description="A column of dates or timestamps; without a zone they are taken as UTC.")
    max_age_h: float = Field(gt=0, description="Greatest age of the newest row, in hours.")
    max_ahead_h: float = Field(
        default=24.0, ge=0, description="How far the newest row may lie in the future, in hours."
    )
    description: str = Why
    severity: Severity = Weight
