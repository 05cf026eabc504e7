"""What changed between two versions of a contract, and whether the version number says so. Pure.

A change is *breaking* if data that were accepted may now be refused or left out, or if a column is dropped or retyped;
*widening* if more is accepted than before; *neutral* otherwise. Only what is critical refuses data, so that changes of
warnings are neutral. A new column that may be null is widening, as schemas commonly have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headway.data_contracts.changes.suite_changes import ContractChange, Effect, compare_suites
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import Contract, Rule
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.types.bounds import compare_bounds

FLOORS = ("min", "min_length", "min_share", "min_ratio")
"""Fields that ask for more when they grow."""
CEILINGS = (
    *("max", "max_length", "max_share", "max_ratio", "max_psi", "max_js", "max_age_h", "max_ahead_h"),
    *("max_failed_ratio", "quarantine_limit_ratio"),
)
"""Fields that ask for more when they shrink."""
STRICT_WHEN_TRUE = ("unique", "finite", "not_null", "strict")
LAX_WHEN_TRUE = ("nullable", "extra_columns")
FIELD_NAMES = ("description", "id", "name", "version")
RULE_LISTS = ("rules", "statistics", "keys", "ordering", "balance", "leakage", "drift", "freshness")


class Suites(NamedTuple):
    """What two versions of a contract ask by `suite:`, read; nothing, where they name none."""

    old: tuple[Check, ...]
    new: tuple[Check, ...]


def compare(old: Contract, new: Contract, suites: Suites | None = None) -> tuple[ContractChange, ...]:
    """Every change, in the contract's order.

    Args:
        suites: None where they cannot be told: then a suite under another name may ask anything.
    """
    return (
        *_compare_columns(old, new),
        *_compare_models("rows", old.rows, new.rows),
        *(change for name in RULE_LISTS for change in _compare_rules(name, old, new)),
        *_compare_optional("volume", old.volume, new.volume),
        *_compare_fields("", old, new, ("description", "extra_columns", "quarantine_limit_ratio", "splits")),
        *_compare_fields("", old, new, ("unparsable_rows",)),
        *(_compare_fields("", old, new, ("suite",)) if suites is None else compare_suites(*suites)),
    )


def breaks_promise(old: Contract, new: Contract, suites: Suites | None = None) -> tuple[ContractChange, ...]:
    """The breaking changes that the version number does not announce; none under another major version."""
    if _major(new) > _major(old):
        return ()
    return tuple(change for change in compare(old, new, suites) if change.effect == "breaking")


def next_version(old: Contract, changes: Sequence[ContractChange]) -> str:
    """The least version number that announces the changes."""
    major, minor, patch = (int(part) for part in old.version.split("."))
    effects = {change.effect for change in changes}
    if "breaking" in effects:
        return f"{major + 1}.0.0"
    if "widening" in effects:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}" if effects else old.version


def _major(contract: Contract) -> int:
    return int(contract.version.split(".")[0])


def _compare_columns(old: Contract, new: Contract) -> Iterator[ContractChange]:
    for name, column in old.columns.items():
        where = f"columns.{name}"
        if name not in new.columns:
            yield ContractChange(effect="breaking", where=where, sentence=f"column {name} is dropped")
        elif column.type != new.columns[name].type:
            sentence = f"column {name} is {new.columns[name].type} instead of {column.type}"
            yield ContractChange(effect="breaking", where=f"{where}.type", sentence=sentence)
        else:
            yield from _compare_models(where, column, new.columns[name], column.type)
    for name, column in new.columns.items():
        if name not in old.columns:
            effect: Effect = "widening" if column.nullable else "breaking"
            kind = "may be null" if column.nullable else "may not be null"
            yield ContractChange(effect=effect, where=f"columns.{name}", sentence=f"column {name} is new and {kind}")


def _compare_rules(name: str, old: Contract, new: Contract) -> Iterator[ContractChange]:
    before, after = ({rule.id: rule for rule in getattr(each, name)} for each in (old, new))
    for rule_id in dict.fromkeys([*before, *after]):
        rule = before.get(rule_id)
        type_name = old.columns[rule.column].type if isinstance(rule, Rule) else ""
        yield from _compare_optional(f"{name}.{rule_id}", rule, after.get(rule_id), type_name)


def _compare_optional(
    where: str, old: Frozen | None, new: Frozen | None, type_name: str = ""
) -> Iterator[ContractChange]:
    if old is not None and new is not None:
        yield from _compare_models(where, old, new, type_name)
    elif new is not None:
        effect: Effect = "breaking" if _refuses(new) else "neutral"
        yield ContractChange(effect=effect, where=where, sentence=f"{where} is new")
    elif old is not None:
        yield ContractChange(
            effect="widening" if _refuses(old) else "neutral", where=where, sentence=f"{where} is no longer asked"
        )


def _refuses(rule: Any) -> bool:
    """Whether a break refuses data or leaves rows out."""
    return rule.severity == "critical" or getattr(rule, "action", "") == "quarantine"


def _compare_models(where: str, old: Any, new: Any, type_name: str = "") -> Iterator[ContractChange]:
    changes = _compare_fields(f"{where}.", old, new, type(old).model_fields, type_name)
    if not _refuses(old) and not _refuses(new):
        changes = (ContractChange(effect="neutral", where=each.where, sentence=each.sentence) for each in changes)
    elif not _refuses(old):
        # What refused nothing now refuses: whatever else is laxer, it is new.
        yield ContractChange(effect="breaking", where=f"{where}.severity", sentence=f"{where} is critical now")
        return
    yield from changes


def _compare_fields(prefix: str, old: Any, new: Any, names: Any, type_name: str = "") -> Iterator[ContractChange]:
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name == "elements" and before is not None and after is not None:
            yield from _compare_fields(f"{prefix}elements.", before, after, type(before).model_fields)
            continue
        effect = _effect(name, before, after, type_name if name in ("min", "max") else "")
        # As the contract file spells it: a person looks for it there.
        where = f"{prefix}{type(old).model_fields[name].alias or name}"
        yield ContractChange(effect=effect, where=where, sentence=_sentence(where, before, after))


def _effect(name: str, before: Any, after: Any, type_name: str) -> Effect:
    if name in FIELD_NAMES:
        return "neutral"
    if name == "severity":
        return "widening"  # towards critical is told apart before
    if name in STRICT_WHEN_TRUE:
        return "breaking" if after else "widening"
    if name in LAX_WHEN_TRUE:
        return "widening" if after else "breaking"
    # Quarantine leaves rows out; without it, a critical rule refuses the data for them.
    if name == "action":
        return "breaking"
    if name == "unparsable_rows":
        return "widening" if after == "quarantine" else "breaking"
    if before is None or after is None:
        return "breaking" if before is None else "widening"
    if name in FLOORS or name in CEILINGS:
        return _bound_effect(before, after, type_name, is_floor=name in FLOORS)
    # The greater it is, the fewer rows count as shared by two splits.
    if name == "min_similarity":
        return "widening" if after > before else "breaking"
    if name == "one_of":
        return "widening" if set(before) <= set(after) else "breaking"
    if name == "no_pii":
        return "widening" if set(after) <= set(before) else "breaking"
    # Of any other field it is not known whether data that were accepted still are.
    return "breaking"


def _bound_effect(before: Any, after: Any, type_name: str, *, is_floor: bool) -> Effect:
    """By what the bounds mean; what cannot be compared may refuse what was accepted."""
    try:
        order = compare_bounds(before, after, type_name)
    except ValueError:
        return "breaking"
    if order == 0:
        return "neutral"  # the same bound in other words, such as 10.0 and 10.00
    return "breaking" if (order < 0) is is_floor else "widening"


def _sentence(where: str, before: Any, after: Any) -> str:
    if before is None or before == ():
        return f"{where} is {_shown(after)} and was not asked"
    if after is None or after == ():
        return f"{where} was {_shown(before)} and is no longer asked"
    return f"{where} is {_shown(after)} instead of {_shown(before)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(str(each) for each in value)
    return " ".join(str(value).split())
