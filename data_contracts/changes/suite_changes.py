"""What changed between two versions of a suite that a contract names. Pure.

An expectation has no name. One of the same type about the same columns is taken for its successor; what is left over on
either side is new, or no longer asked. An argument that is not known to be laxer may refuse what was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.suites.literals import UnsupportedExpectation, read_bound

Effect = Literal["breaking", "widening", "neutral"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractChange:
    effect: Effect
    where: str
    """The key of the contract, such as `columns.age.min`, or of an expectation of its suite, as `suite.2.min_value`."""
    sentence: str


SUBJECT = ("column", "column_A", "column_B", "column_list")
"""Arguments that say what an expectation is about."""
FLOORS = ("min_value", "mostly")
CEILINGS = ("max_value",)
STRICT_WHEN_TRUE = ("strict_min", "strict_max", "exact_match")
LAX_WHEN_TRUE = ("or_equal", "ties_okay")
SILENT = ("result_format", "catch_exceptions", "meta")
"""Arguments that no verdict depends on."""
DEFAULTS: dict[str, Any] = {
    **{"mostly": 1.0, "strict_min": False, "strict_max": False, "exact_match": True, "or_equal": False},
    **{"ties_okay": False, "match_on": "any", "allow_relative_error": False},
}
LISTS = ("value_set", "type_list", "regex_list")
ANY_OF = (
    *("expect_column_values_to_be_in_set", "expect_column_distinct_values_to_be_in_set"),
    *("expect_column_values_to_be_in_type_list", "expect_column_values_to_match_regex_list"),
)
"""Expectations that a longer list makes laxer."""
ALL_OF = (
    *("expect_column_values_to_not_be_in_set", "expect_column_distinct_values_to_contain_set"),
    "expect_column_values_to_not_match_regex_list",
)
"""Expectations that a longer list makes stricter."""


def compare_suites(old: Sequence[Check], new: Sequence[Check]) -> Iterator[ContractChange]:
    """Every change of what is asked; the order of expectations is none."""
    before, after = _by_subject(old), _by_subject(new)
    for subject in dict.fromkeys([*before, *after]):
        yield from _compare_alike(before.get(subject, []), after.get(subject, []))


def _by_subject(checks: Sequence[Check]) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in checks:
        kwargs = check.arguments["kwargs"]
        subject = [check.arguments["type"], *(kwargs.get(name) for name in SUBJECT)]
        found.setdefault(json.dumps(subject), []).append(check)
    return found


def _compare_alike(before: Sequence[Check], after: Sequence[Check]) -> Iterator[ContractChange]:
    """Of expectations of one type about the same columns: equal ones are no change, the others are paired in order."""
    old, new = list(before), []
    for check in after:
        same = next((each for each in old if _constraints_of(each) == _constraints_of(check)), None)
        if same is None:
            new.append(check)
        else:
            old.remove(same)
    for gone, come in zip_longest(old, new):
        if gone is None:
            effect: Effect = "breaking" if come.severity == "critical" else "neutral"
            yield ContractChange(effect=effect, where=come.rule_id, sentence=f"{_name(come)} is new")
        elif come is None:
            effect = "widening" if gone.severity == "critical" else "neutral"
            yield ContractChange(effect=effect, where=gone.rule_id, sentence=f"{_name(gone)} is no longer asked")
        else:
            yield from _compare(gone, come)


def _compare(old: Check, new: Check) -> Iterator[ContractChange]:
    if new.severity == "critical" != old.severity:
        yield ContractChange(
            effect="breaking", where=f"{new.rule_id}.severity", sentence=f"{_name(new)} is critical now"
        )
        return
    if new.severity != old.severity:
        effect: Effect = "widening" if old.severity == "critical" else "neutral"
        sentence = f"{_name(new)} is {new.severity} instead of {old.severity}"
        yield ContractChange(effect=effect, where=f"{new.rule_id}.severity", sentence=sentence)
    before, after = old.arguments["kwargs"], new.arguments["kwargs"]
    for name in dict.fromkeys([*before, *after]):
        was, now = (each.get(name, DEFAULTS.get(name)) for each in (before, after))
        if was == now:
            continue
        # Where every pattern must match, a longer list asks for more and not for less.
        is_every = before.get("match_on") == "all" or after.get("match_on") == "all"
        kind = "" if is_every else new.arguments["type"]
        effect = _effect(kind, name, was, now) if new.severity == "critical" else "neutral"
        shown = f"{'anything' if now is None else now} instead of {'anything' if was is None else was}"
        sentence = f"{_name(new)} has {name} {shown}"
        yield ContractChange(effect=effect, where=f"{new.rule_id}.{name}", sentence=sentence)


def _effect(kind: str, name: str, before: Any, after: Any) -> Effect:
    if name in SILENT:
        return "neutral"
    if name in STRICT_WHEN_TRUE:
        return "breaking" if after else "widening"
    if name in LAX_WHEN_TRUE:
        return "widening" if after else "breaking"
    if name in (*FLOORS, *CEILINGS):
        if before is None or after is None:
            return "breaking" if before is None else "widening"
        return _bound_effect(before, after, is_floor=name in FLOORS)
    if name == "quantile_ranges":
        return "widening" if _is_wider(before, after) else "breaking"
    if name in LISTS and all(isinstance(each, list) for each in (before, after)):
        if kind in ANY_OF and all(each in after for each in before):
            return "widening"
        if kind in ALL_OF and all(each in before for each in after):
            return "widening"
    return "breaking"


def _bound_effect(before: Any, after: Any, *, is_floor: bool) -> Effect:
    """By what the bounds mean; what cannot be compared may refuse what was accepted."""
    # A suite does not say its columns' types, so the first type that both bounds can be read as decides.
    for type_name in ("double", "timestamp[us]", "timestamp[us, tz=UTC]"):
        try:
            was, now = (read_bound(each, type_name) for each in (before, after))
        except UnsupportedExpectation:
            continue
        if was == now:
            return "neutral"
        return "breaking" if (now > was) is is_floor else "widening"
    return "breaking"


def _is_wider(before: Any, after: Any) -> bool:
    """Whether every quantile may lie wherever it might before."""
    if before is None or after is None or before["quantiles"] != after["quantiles"]:
        return False
    pairs = zip(before["value_ranges"], after["value_ranges"], strict=True)
    return all(
        (now[0] is None or (was[0] is not None and now[0] <= was[0]))
        and (now[1] is None or (was[1] is not None and now[1] >= was[1]))
        for was, now in pairs
    )


def _constraints_of(check: Check) -> tuple[str, str]:
    return check.severity, json.dumps(check.arguments["kwargs"], sort_keys=True)


def _name(check: Check) -> str:
    return f"{check.rule_id} ({check.description})"
