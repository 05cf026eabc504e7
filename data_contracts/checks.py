"""A contract compiled to checks: the flat list that the Great Expectations suite and the exact SQL are made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from data_contracts.contract import FLOAT_TYPES, Column, Constraints, Contract, Rule, Statistic
from data_contracts.documents import Severity

Kind = Literal[
    "columns", "type", "num_rows", "statistic", "unique", "not_null", "finite", "between", "one_of", "pattern", "length"
]
ROW_LEVEL: tuple[Kind, ...] = ("not_null", "finite", "between", "one_of", "pattern", "length")
"""Kinds that a single row keeps or breaks."""
EXACT: tuple[Kind, ...] = ("type", "unique", "finite")
"""Kinds that Great Expectations cannot judge exactly on DuckDB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that must hold, under the name it has in the receipt."""

    rule_id: str
    description: str
    severity: Severity
    kind: Kind
    column: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    max_failed_ratio: float = 0.0
    quarantine_rule: str = ""
    """The rule whose breakers are set aside before this check is judged; empty when it sets none aside."""

    @property
    def is_row_level(self) -> bool:
        return self.kind in ROW_LEVEL

    @property
    def needs_sql(self) -> bool:
        """Whether the verdict needs the exact count, rather than only its explanation."""
        # DuckDB holds NaN to be above every number, so that Great Expectations would let it pass a lower bound.
        return self.kind in EXACT or (self.kind == "between" and self.arguments["is_float"])

    def num_tolerated(self, num_judged: int) -> int:
        """How many of the rows judged may break it."""
        # 0.29 * 100 is 28.999999999999996 in binary.
        return int(num_judged * self.max_failed_ratio + 1e-9)


def compile_checks(contract: Contract) -> tuple[Check, ...]:
    """Every check of a contract, in the contract's order."""
    return (
        _columns_check(contract),
        _row_count_check(contract),
        *(check for name, column in contract.columns.items() for check in _column_checks(name, column)),
        *(check for rule in contract.rules for check in _rule_checks(contract, rule)),
        *(_statistic_check(statistic) for statistic in contract.statistics),
    )


def _columns_check(contract: Contract) -> Check:
    manner = "at least" if contract.extra_columns else "exactly"
    return Check(
        rule_id="columns",
        description=f"The columns are {manner} {', '.join(contract.columns)}",
        severity="critical",
        kind="columns",
        arguments={"names": tuple(contract.columns), "exactly": not contract.extra_columns},
    )


def _row_count_check(contract: Contract) -> Check:
    rows = contract.rows
    return Check(
        rule_id="rows",
        description=f"The number of rows {_range(rows.min, rows.max)}",
        severity=rows.severity,
        kind="num_rows",
        arguments={"min": rows.min, "max": rows.max},
    )


def _column_checks(name: str, column: Column) -> Iterator[Check]:
    def check(kind: Kind, text: str, **arguments: Any) -> Check:
        return Check(
            rule_id=f"{name}.{kind}",
            description=f"{name} {text}",
            severity=column.severity,
            kind=kind,
            column=name,
            arguments=arguments,
        )

    yield check("type", f"is of type {column.type}", type=column.type)
    if not column.nullable:
        yield check("not_null", "is never null")
    if column.unique:
        yield check("unique", "never has a value twice")
    is_float = column.type in FLOAT_TYPES
    if column.finite and is_float:
        yield check("finite", "is never NaN or infinite")
    for kind, text, arguments in _constraints(column, is_float=is_float):
        yield check(kind, text, **arguments)


def _rule_checks(contract: Contract, rule: Rule) -> Iterator[Check]:
    asked: list[tuple[Kind, str, dict[str, Any]]] = []
    if rule.not_null:
        asked.append(("not_null", "is never null", {}))
    if rule.finite:
        asked.append(("finite", "is never NaN or infinite", {}))
    asked += _constraints(rule, is_float=contract.columns[rule.column].type in FLOAT_TYPES)
    for kind, text, arguments in asked:
        sentence = f"{rule.column} {text}"
        yield Check(
            rule_id=rule.id if len(asked) == 1 else f"{rule.id}.{kind}",
            description=f"{rule.description.rstrip('.')}: {sentence}" if rule.description else sentence,
            severity=rule.severity,
            kind=kind,
            column=rule.column,
            arguments=arguments,
            max_failed_ratio=rule.max_failed_ratio,
            quarantine_rule=rule.id if rule.action == "quarantine" else "",
        )


def _statistic_check(rule: Statistic) -> Check:
    sentence = f"the {rule.statistic} of {rule.column} {_range(rule.min, rule.max)}"
    return Check(
        rule_id=rule.id,
        description=f"{rule.description.rstrip('.')}: {sentence}" if rule.description else sentence.capitalize(),
        severity=rule.severity,
        kind="statistic",
        column=rule.column,
        arguments={"statistic": rule.statistic, "min": rule.min, "max": rule.max},
    )


def _constraints(asked: Constraints, *, is_float: bool) -> list[tuple[Kind, str, dict[str, Any]]]:
    found: list[tuple[Kind, str, dict[str, Any]]] = []
    if asked.min is not None or asked.max is not None:
        arguments = {"min": asked.min, "max": asked.max, "is_float": is_float}
        found.append(("between", _range(asked.min, asked.max), arguments))
    if asked.one_of is not None:
        shown = ", ".join(_shown(value) for value in asked.one_of)
        found.append(("one_of", f"is {'one of ' if len(asked.one_of) > 1 else ''}{shown}", {"values": asked.one_of}))
    if asked.pattern is not None:
        found.append(("pattern", f"matches {asked.pattern}", {"pattern": asked.pattern}))
    if asked.min_length is not None or asked.max_length is not None:
        arguments = {"min": asked.min_length, "max": asked.max_length}
        found.append(("length", f"has a length that {_range(asked.min_length, asked.max_length)}", arguments))
    return found


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"is {_shown(low)}" if low == high else f"is between {_shown(low)} and {_shown(high)}"
    if low is not None:
        return f"is at least {_shown(low)}"
    return "is anything" if high is None else f"is at most {_shown(high)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else str(value)
