"""A change that refuses what was accepted needs another major version; what is laxer, or only words, does not."""

from __future__ import annotations

import pytest

from headway.data_contracts.changes.compatibility import RULE_LISTS, breaks_promise, compare, next_version
from headway.data_contracts.rules.contract import Contract, parse_contract

TEXT = """
name: events
version: 1.4.2
rows: {min: 10, max: 100}
quarantine_limit_ratio: 0.01
columns:
  id: {type: int64, min: 0, max: 10}
  label: {type: string, in: [a, b], nullable: true, severity: warning}
  note: {type: string, min_length: 1, no_pii: [email]}
  tokens: {type: 'list<int32>', elements: {max: 511}}
rules:
  - {id: few, column: id, min: 1, max_failed_ratio: 0.5}
  - {id: set, column: note, pattern: 'a+', action: quarantine}
keys:
  - {id: key, columns: [id, note]}
balance:
  - {id: shares, column: label, min_share: 0.1, severity: info}
volume: {min_ratio: 0.5}
freshness: []
"""


def contract(*edits: tuple[str, str]) -> Contract:
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parse_contract(text, where="events.yaml")


OLD = contract()


@pytest.mark.parametrize(
    ("edit", "effect", "where"),
    [
        (
            ("  id: {type: int64, min: 0, max: 10}", "  id: {type: int32, min: 0, max: 10}"),
            "breaking",
            "columns.id.type",
        ),
        (("min: 0, max: 10}", "min: 1, max: 10}"), "breaking", "columns.id.min"),
        (("min: 0, max: 10}", "min: 0, max: 9}"), "breaking", "columns.id.max"),
        (("min: 0, max: 10}", "min: 0, max: 11}"), "widening", "columns.id.max"),
        (("min: 0, max: 10}", "max: 10}"), "widening", "columns.id.min"),
        (("min: 0, max: 10}", "min: 0, max: 10, unique: true}"), "breaking", "columns.id.unique"),
        (("min: 0, max: 10}", "min: 0, max: 10, nullable: true}"), "widening", "columns.id.nullable"),
        (("min: 0, max: 10}", "min: 0, max: 10, in: [1, 2]}"), "breaking", "columns.id.in"),
        (("min: 0, max: 10}", "min: 0, max: 10, description: key}"), "neutral", "columns.id.description"),
        (("min: 0, max: 10}", "min: 0, max: 10, severity: info}"), "widening", "columns.id.severity"),
        (("in: [a, b]", "in: [a]"), "neutral", "columns.label.in"),
        (("nullable: true, severity: warning", "nullable: true"), "breaking", "columns.label.severity"),
        (("no_pii: [email]", "no_pii: [email, iban]"), "breaking", "columns.note.no_pii"),
        ((", no_pii: [email]", ""), "widening", "columns.note.no_pii"),
        (("{max: 511}", "{max: 255}"), "breaking", "columns.tokens.elements.max"),
        (("{max: 511}", "{max: 1023}"), "widening", "columns.tokens.elements.max"),
        (("rows: {min: 10", "rows: {min: 11"), "breaking", "rows.min"),
        (("rows: {min: 10", "rows: {min: 9"), "widening", "rows.min"),
        (("limit_ratio: 0.01", "limit_ratio: 0.001"), "breaking", "quarantine_limit_ratio"),
        (("max_failed_ratio: 0.5", "max_failed_ratio: 0.4"), "breaking", "rules.few.max_failed_ratio"),
        (("pattern: 'a+'", "pattern: 'b+'"), "breaking", "rules.set.pattern"),
        (("  - {id: few, column: id, min: 1, max_failed_ratio: 0.5}\n", ""), "widening", "rules.few"),
        (("keys:\n", "keys:\n  - {id: other, columns: [id]}\n"), "breaking", "keys.other"),
        (("keys:\n", "keys:\n  - {id: other, columns: [id], severity: info}\n"), "neutral", "keys.other"),
        (("min_share: 0.1", "min_share: 0.2"), "neutral", "balance.shares.min_share"),
        (("volume: {min_ratio: 0.5}\n", ""), "widening", "volume"),
        (("rules:\n", "extra_columns: true\nrules:\n"), "widening", "extra_columns"),
        (("rules:\n", "  new: {type: bool, nullable: true}\nrules:\n"), "widening", "columns.new"),
        (("rules:\n", "  new: {type: bool}\nrules:\n"), "breaking", "columns.new"),
        (("name: events", "name: events\ndescription: all of them"), "neutral", "description"),
    ],
)
def test_a_change_is_weighed_by_what_it_refuses(edit: tuple[str, str], effect: str, where: str) -> None:
    new = contract(edit)
    assert [(change.effect, change.where) for change in compare(OLD, new)] == [(effect, where)]
    assert bool(breaks_promise(OLD, new)) is (effect == "breaking")


def test_a_dropped_column_is_breaking() -> None:
    without = OLD.model_copy(update={"columns": {n: c for n, c in OLD.columns.items() if n != "tokens"}})
    assert [change.sentence for change in compare(OLD, without)] == ["column tokens is dropped"]
    assert breaks_promise(OLD, without)


def test_another_major_version_may_break_and_a_minor_one_may_not() -> None:
    edit = ("max: 10}", "max: 9}")
    assert breaks_promise(OLD, contract(edit, ("1.4.2", "1.5.0")))
    assert not breaks_promise(OLD, contract(edit, ("1.4.2", "2.0.0")))


@pytest.mark.parametrize(
    ("edit", "version"),
    [
        (("max: 10}", "max: 9}"), "2.0.0"),
        (("max: 10}", "max: 11}"), "1.5.0"),
        (("name: events", "name: events\ndescription: words"), "1.4.3"),
    ],
)
def test_the_least_version_that_announces_the_changes_is_named(edit: tuple[str, str], version: str) -> None:
    assert next_version(OLD, compare(OLD, contract(edit))) == version


def test_nothing_changed_is_no_change() -> None:
    assert compare(OLD, contract()) == ()
    assert next_version(OLD, ()) == "1.4.2"


PRICE, DAY, NAIVE, ZONED, CLOCK = (
    *("decimal128(10, 2)", "date32[day]", "timestamp[ns]"),
    *("timestamp[us, tz=UTC]", "time64[us]"),
)


@pytest.mark.parametrize("place", ["column", "rule"])
@pytest.mark.parametrize(
    ("type_name", "before", "after", "effect"),
    [
        (PRICE, "10000.00", "9999.99", "breaking"),
        (PRICE, "9999.99", "10000.00", "widening"),
        (PRICE, "10.0", "10.00", "neutral"),
        (PRICE, "10.5", 10, "breaking"),
        (DAY, "2026-01-31", "20260201", "widening"),
        (ZONED, "2026-01-01T12:00:00+00:00", "2026-01-01T13:00:00+02:00", "breaking"),
        (NAIVE, "2026-01-01T00:00:00.000000002", "2026-01-01T00:00:00.000000001", "breaking"),
        (NAIVE, "2026-01-01", "2026-01-01T00:00:00", "neutral"),
        (NAIVE, "2026-01-01T00:00:00", "2026-01-02T00:00:00+00:00", "breaking"),
        (CLOCK, "09:00:00", "10:00", "widening"),
    ],
)
def test_bounds_are_compared_as_values_of_their_column(
    place: str, type_name: str, before: object, after: object, effect: str
) -> None:
    """Neither as text, nor without their offset, nor cut at a microsecond; what cannot be compared breaks."""

    def bounded(most: object) -> Contract:
        bound = f"max: '{most}'" if isinstance(most, str) else f"max: {most}"
        column = f"name: x\nversion: 1.0.0\ncolumns: {{a: {{type: '{type_name}', "
        text = f"{column}{bound}}}}}" if place == "column" else f"{column}}}}}\nrules: [{{id: r, column: a, {bound}}}]"
        return parse_contract(text, where="x.yaml")

    assert [change.effect for change in compare(bounded(before), bounded(after))] == [effect]


def test_every_list_of_rules_that_a_contract_has_is_compared() -> None:
    lists = [name for name, field in Contract.model_fields.items() if field.default == ()]
    assert list(RULE_LISTS) == lists
