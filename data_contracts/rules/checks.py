"""A contract compiled to checks: the flat list that the Great Expectations suite and the exact SQL are made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.data_contracts.rules.constraints import Constraints, Elements
from headway.data_contracts.rules.contract import Column, Contract, Rule, Statistic
from headway.data_contracts.rules.set_rules import Balance, Drift, Key, Leakage, Ordering, VolumeRule
from headway.data_contracts.store.documents import Severity
from headway.data_contracts.types.type_families import element_type, family

RowKind = Literal["not_null", "finite", "between", "one_of", "pattern", "length", "elements", "pii"]
SetKind = Literal[
    "columns", "type", "num_rows", "statistic", "unique", "ordering", "balance", "leakage", "volume", "drift", "suite"
]
Kind = RowKind | SetKind
SetRule = Key | Ordering | Balance | Leakage | Drift
ROW_LEVEL: tuple[Kind, ...] = ("not_null", "finite", "between", "one_of", "pattern", "length", "elements", "pii")
"""Kinds that a single row keeps or breaks. Their counts add up over files, so an unchanged file is not read again."""
SCANNED: tuple[Kind, ...] = ("unique", "ordering", "balance", "leakage")
"""Kinds that speak of rows in different files at once: they are evaluated on the whole set, every time."""
GREAT_EXPECTATIONS: tuple[Kind, ...] = (
    "columns", "num_rows", "statistic", "not_null", "between", "one_of", "pattern", "length"
)  # fmt: skip
"""Kinds that Great Expectations evaluates here, on DuckDB; a given suite's as it would on pandas."""
MAX_EXACT_DOUBLE = 1 << 53


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that must hold, under the name it has in the receipt."""

    rule_id: str
    description: str
    severity: Severity
    kind: Kind
    column: str = ""
    columns: tuple[str, ...] = ()
    """For kinds that speak of several columns at once."""
    arguments: dict[str, Any] = field(default_factory=dict)
    max_failed_ratio: float = 0.0
    quarantine_rule: str = ""
    """The rule whose breakers are quarantined before this check is evaluated; empty when it quarantines none."""

    @property
    def is_row_level(self) -> bool:
        return self.kind in ROW_LEVEL

    @property
    def has_expectation(self) -> bool:
        """Whether Great Expectations can say exactly what it says."""
        if self.kind == "between":
            # Great Expectations takes bounds as doubles.
            bounds = (self.arguments["min"], self.arguments["max"])
            return not any(isinstance(bound, str) or abs(bound or 0) > MAX_EXACT_DOUBLE for bound in bounds)
        if self.kind == "length":
            return bool(self.arguments["of"] == "string")
        return self.kind in GREAT_EXPECTATIONS

    def num_tolerated(self, num_evaluated: int) -> int:
        """How many of the rows checked may break it."""
        # 0.29 * 100 is 28.999999999999996 in binary.
        return int(num_evaluated * self.max_failed_ratio + 1e-9)


def compile_checks(contract: Contract) -> tuple[Check, ...]:
    """Every check of a contract, in the contract's order; freshness is evaluated at the gate instead."""
    return (
        _columns_check(contract),
        _row_count_check(contract),
        *(check for name, column in contract.columns.items() for check in _column_checks(name, column)),
        *(check for rule in contract.rules for check in _rule_checks(contract, rule)),
        *(_statistic_check(statistic) for statistic in contract.statistics),
        *_set_checks(contract),
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
    def check(kind: Kind, text: str, rule_id: str = "", **arguments: Any) -> Check:
        return Check(
            rule_id=rule_id or f"{name}.{kind}",
            description=f"{name} {text}",
            severity=column.severity,
            kind=kind,
            column=name,
            columns=(name,) if kind == "unique" else (),
            arguments=arguments,
        )

    yield check("type", f"is of type {column.type}", type=column.type)
    if not column.nullable:
        yield check("not_null", "is never null")
    if column.unique:
        yield check("unique", "never has a value twice")
    if column.finite and family(column.type) == "float":
        yield check("finite", "is never NaN or infinite")
    for kind, text, arguments in _constraints(column, column.type):
        yield check(kind, text, _own_id(name, kind, arguments), **arguments)


def _own_id(name: str, kind: Kind, arguments: dict[str, Any]) -> str:
    return f"{name}.{kind}.{arguments['pii']}" if kind == "pii" else f"{name}.{kind}"


def _rule_checks(contract: Contract, rule: Rule) -> Iterator[Check]:
    constraints: list[tuple[Kind, str, dict[str, Any]]] = []
    if rule.not_null:
        constraints.append(("not_null", "is never null", {}))
    if rule.finite:
        constraints.append(("finite", "is never NaN or infinite", {}))
    constraints += _constraints(rule, contract.columns[rule.column].type)
    for kind, text, arguments in constraints:
        yield Check(
            rule_id=rule.id if len(constraints) == 1 else _own_id(rule.id, kind, arguments),
            description=_explained(rule.description, f"{rule.column} {text}"),
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
        description=_explained(rule.description, sentence),
        severity=rule.severity,
        kind="statistic",
        column=rule.column,
        arguments={"statistic": rule.statistic, "min": rule.min, "max": rule.max},
    )


def _set_checks(contract: Contract) -> Iterator[Check]:
    for key in contract.keys:
        yield _set_check(key, "unique", f"no two rows share their {' and '.join(key.columns)}", columns=key.columns)
    for order in contract.ordering:
        yield _set_check(order, "ordering", _order_text(order), column=order.column, arguments=order.model_dump())
    for balance in contract.balance:
        text = f"classes of {balance.column} hold {_percent(balance.min_share)} to {_percent(balance.max_share)}"
        arguments = balance.model_dump() | {"classes": contract.columns[balance.column].one_of}
        yield _set_check(balance, "balance", text, column=balance.column, arguments=arguments)
    for leak in contract.leakage:
        yield _leakage_check(leak, contract)
    if contract.volume is not None:
        yield _volume_check(contract.volume)
    for drift in contract.drift:
        yield from _drift_checks(drift, contract)


def _set_check(rule: SetRule, kind: SetKind, text: str, rule_id: str = "", **fields: Any) -> Check:
    return Check(
        rule_id=rule_id or rule.id,
        description=_explained(rule.description, text),
        severity=rule.severity,
        kind=kind,
        **fields,
    )


def _order_text(order: Ordering) -> str:
    place = "inside each file" if order.within == "file" else "over all files"
    if order.strict:
        return f"{order.column} always goes {'down' if order.descending else 'up'} {place}"
    return f"{order.column} never goes {'up' if order.descending else 'down'} {place}"


def _leakage_check(leak: Leakage, contract: Contract) -> Check:
    manner = {"exact": "", "normalized": ", normalized", "similar": f", alike by {_percent(leak.min_similarity)}"}
    arguments = {
        "compare": leak.compare,
        "min_similarity": leak.min_similarity,
        "splits": contract.splits,
        "types": tuple(contract.columns[name].type for name in leak.columns),
    }
    text = f"no two splits share {' and '.join(leak.columns)}{manner[leak.compare]}"
    ratio = leak.max_failed_ratio
    return _set_check(leak, "leakage", text, columns=leak.columns, arguments=arguments, max_failed_ratio=ratio)


def _volume_check(volume: VolumeRule) -> Check:
    return Check(
        rule_id="volume",
        description=f"The rows are {volume.min_ratio:g} to {volume.max_ratio:g} times the accepted snapshot's",
        severity=volume.severity,
        kind="volume",
        arguments={"min": volume.min_ratio, "max": volume.max_ratio},
    )


def _drift_checks(drift: Drift, contract: Contract) -> Iterator[Check]:
    limits = [f"PSI {drift.max_psi:g}"] if drift.max_psi is not None else []
    limits += [f"JS {drift.max_js:g}"] if drift.max_js is not None else []
    for name in drift.columns:
        column = contract.columns[name]
        arguments = drift.model_dump() | {"type": column.type, "classes": column.one_of}
        text = f"the {drift.of} of {name} stay within {' and '.join(limits)} of the accepted snapshot's"
        rule_id = drift.id if len(drift.columns) == 1 else f"{drift.id}.{name}"
        yield _set_check(drift, "drift", text, rule_id, column=name, arguments=arguments)


def _constraints(constraints: Constraints, type_name: str) -> list[tuple[Kind, str, dict[str, Any]]]:
    found: list[tuple[Kind, str, dict[str, Any]]] = []
    if constraints.min is not None or constraints.max is not None:
        arguments = {"min": constraints.min, "max": constraints.max, "type": type_name}
        found.append(("between", _range(constraints.min, constraints.max), arguments))
    if constraints.one_of is not None:
        shown = ", ".join(_shown(value) for value in constraints.one_of)
        found.append(
            ("one_of", f"is {'one of ' if len(constraints.one_of) > 1 else ''}{shown}", {"values": constraints.one_of})
        )
    if constraints.pattern is not None:
        found.append(("pattern", f"matches {constraints.pattern}", {"pattern": constraints.pattern}))
    if constraints.min_length is not None or constraints.max_length is not None:
        arguments = {"min": constraints.min_length, "max": constraints.max_length, "of": family(type_name)}
        found.append(
            ("length", f"has a length that {_range(constraints.min_length, constraints.max_length)}", arguments)
        )
    if constraints.elements is not None:
        found.append(
            ("elements", _elements_text(constraints.elements), _elements_arguments(constraints.elements, type_name))
        )
    found += [("pii", f"holds no {kind}", {"pii": kind}) for kind in constraints.no_pii]
    return found


def _elements_arguments(elements: Elements, type_name: str) -> dict[str, Any]:
    of = element_type(type_name) if family(type_name) == "list" else ""
    return elements.model_dump() | {"type": of, "is_float": bool(of) and family(of) == "float"}


def _elements_text(elements: Elements) -> str:
    parts = [] if (elements.min, elements.max) == (None, None) else [f"each {_range(elements.min, elements.max)}"]
    parts.append("null allowed" if elements.nullable else "none null")
    return f"has elements: {', '.join(parts)}"


def _explained(description: str, sentence: str) -> str:
    if description:
        return f"{description.rstrip('.')}: {sentence}"
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("the ", "no ", "classes ")) else sentence


def _percent(share: float) -> str:
    return f"{share * 100:.4g} %"


def _range(low: Any, high: Any) -> str:
    if low is not None and high is not None:
        return f"is {_shown(low)}" if low == high else f"is between {_shown(low)} and {_shown(high)}"
    if low is not None:
        return f"is at least {_shown(low)}"
    return "is anything" if high is None else f"is at most {_shown(high)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else str(value)
