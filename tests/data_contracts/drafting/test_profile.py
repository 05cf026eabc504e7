"""A profile says exactly what is in the rows, and never holds a value of a column that may be personal."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headway.data_contracts.drafting import profile as profile_module
from headway.data_contracts.drafting.profile import ColumnProfile, StrayValues, TableProfile, profile_rows
from headway.data_contracts.types.column_types import type_name


def profile(columns: Mapping[str, Any]) -> TableProfile:
    table = pa.table(dict(columns))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return profile_rows(connection, {field.name: type_name(field.type) for field in table.schema})


def column(values: Any, name: str = "c") -> ColumnProfile:
    return profile({name: values}).columns[0]


def test_nulls_bounds_and_what_is_not_finite_are_counted_exactly() -> None:
    found = column(pa.array([1.5, None, float("nan"), -2.0, float("inf")] * 100))
    assert (found.num_rows, found.num_nulls, found.num_not_finite) == (500, 100, 200)
    assert (found.low, found.high) == (-2.0, 1.5)


def test_a_column_of_few_values_is_given_with_all_of_them_in_order() -> None:
    assert column(["b", "a", None, "c"] * 50).values == ("a", "b", "c")
    assert column([3, 1, 2] * 50).values == (1, 2, 3)


@pytest.mark.parametrize("name", ["num_lines", "max_line_chars", "lineCount", "size_bytes", "AgeYears", "n", "age"])
def test_what_is_counted_or_measured_is_no_set_however_few_values_it_had(name: str) -> None:
    assert column([1, 2, 3] * 500, name).values == ()
    assert column(["a", "b"] * 500, name).values == ("a", "b")


@pytest.mark.parametrize("name", ["class", "status", "nation", "image", "message_kind", "maximal", "stage"])
def test_whole_numbers_that_stand_for_something_are_a_set(name: str) -> None:
    assert column([1, 2, 3] * 20, name).values == (1, 2, 3)
    assert column([1, 2, 3] * 19, name).values == ()


def test_as_many_values_as_a_set_may_have_and_no_more() -> None:
    many = list(range(profile_module.MAX_VALUES))
    assert len(column(many * 20).values) == profile_module.MAX_VALUES
    assert column([*many, -1] * 20).values == ()


def test_values_seen_only_a_few_times_are_no_set() -> None:
    assert column(["a", "b", "c"]).values == ()


def test_one_repetition_among_many_rows_is_no_key() -> None:
    numbers = list(range(50_000))
    assert column(numbers).is_unique
    assert not column([*numbers[:-1], 0]).is_unique


def test_a_few_rows_prove_no_key() -> None:
    assert not column(list(range(profile_module.MIN_ROWS_OF_KEY - 1))).is_unique
    assert column(list(range(profile_module.MIN_ROWS_OF_KEY))).is_unique


def test_two_columns_that_only_together_name_a_row_are_found() -> None:
    pairs = [(a, b) for a in range(40) for b in range(30)]
    shop, day = [a for a, _ in pairs], [b for _, b in pairs]
    assert profile({"shop": shop, "price": [1] * len(pairs), "day": day}).key == ("shop", "day")
    assert profile({"shop": [*shop, 0], "day": [*day, 0]}).key == ()
    assert profile({"id": list(range(len(pairs))), "shop": shop, "day": day}).key == ()


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda n: f"{n:064x}", "a SHA-256 digest"),
        (lambda n: f"{n:08x}-0000-4000-8000-{n:012x}", "a UUID"),
        (lambda n: f"2026-01-{1 + n % 28:02d}", "a date"),
        (lambda n: f"{1 + n % 28:02d}.01.2026", "a date, dotted or slashed"),
        (lambda n: f"1/{1 + n % 28}/26 9:{n % 60:02d}", "a date, dotted or slashed"),
        (lambda n: f"pkg/m{n}.py", "a file name that ends in .py"),
    ],
)
def test_a_shape_is_named_only_when_every_value_has_it(made: Any, name: str) -> None:
    values = [made(n) for n in range(500)]
    found = column(values).shape
    assert found is not None
    assert found.name == name
    assert column([*values, "another thing!"]).shape is None


def test_a_shape_that_most_values_have_is_not_certain_in_large_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "MAX_LOOKED_AT", 50)
    values = [f"{n:064x}" for n in range(5000)]
    assert column(values).shape is not None
    for place in range(0, 5000, 700):
        assert column([*values[:place], "odd", *values[place:]]).shape is None


PERSONAL = {
    "email": "write to ada.lovelace@example.org, please",
    "phone": "call +49 170 1234567",
    "credit-card": "4111 1111 1111 1111",
    "iban": "GB29 NWBK 6016 1331 9268 19",
    "us-ssn": "078-05-1120",
    "ipv4": "from 192.168.17.4 at noon",
}


@pytest.mark.parametrize("kind", PERSONAL)
def test_personal_data_are_suspected_by_kind_and_their_values_are_kept_nowhere(kind: str) -> None:
    found = column([PERSONAL[kind], "nothing here", None] * 40)
    assert [(each.kind, each.num_seen, each.num_looked_at) for each in found.suspicions] == [(kind, 40, 80)]
    assert PERSONAL[kind] not in repr(found)
    assert (found.values, found.shape) == ((), None)


@pytest.mark.parametrize("name", ["email", "customerEmail", "Home-Phone", "last_name", "date_of_birth", "client_ip"])
def test_a_column_s_name_can_raise_the_suspicion(name: str) -> None:
    assert column([1, 2] * 50, name).suspicions
    assert column([1, 2] * 50, name).values == ()


@pytest.mark.parametrize("name", ["name", "filename", "ship", "species", "panel", "relabelled"])
def test_ordinary_names_raise_none(name: str) -> None:
    assert column([1, 2] * 50, name).suspicions == ()


def test_ordinary_texts_raise_no_suspicion() -> None:
    texts = ["2026-01-05 10:11:12", "version 1.2.3", "550e8400-e29b-41d4-a716-446655440000", "1,234,567.89", "a@b"]
    assert column(texts * 50).suspicions == ()


def test_digits_inside_a_digest_are_no_card_number() -> None:
    digests = [f"{number:016x}4111111111111111{number:032x}" for number in range(200)]
    found = column([digest.replace("0", "a", 1) for digest in digests])
    assert found.suspicions == ()


def test_times_are_seconds_whatever_their_zone() -> None:
    noon = datetime.datetime(2026, 1, 1, 12)
    for kind in (pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns", tz="Europe/Berlin")):
        assert column(pa.array([noon] * 3, kind)).low == noon.replace(tzinfo=datetime.UTC).timestamp()


def test_lists_have_lengths_and_the_bounds_of_their_elements() -> None:
    found = column(pa.array([[1, 5], [7], None, []] * 10, pa.list_(pa.int32())))
    assert (found.min_length, found.max_length, found.low, found.high) == (0, 2, 1, 7)


def test_columns_of_any_name_and_of_nothing_but_nulls_are_profiled() -> None:
    names = ['with "quotes"', "select", "ä b", "x'y"]
    found = profile({name: pa.array([None] * 5, pa.string()) for name in names})
    assert [each.name for each in found.columns] == names
    assert all(each.num_values == 0 for each in found.columns)


def test_a_table_of_very_many_columns_is_profiled() -> None:
    found = profile({f"c{n}": [n] for n in range(3 * profile_module.COLUMNS_PER_SCAN + 1)})
    assert [each.low for each in found.columns] == list(range(3 * profile_module.COLUMNS_PER_SCAN + 1))


def test_equal_rows_in_another_order_give_an_equal_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "MAX_LOOKED_AT", 100)
    texts = [f"{n} {'a@example.org' if n % 3 else ''}" for n in range(3000)]
    first = profile({"c": texts})
    random.Random(0).shuffle(texts)
    assert profile({"c": texts}) == first


def test_values_that_keep_a_text_from_being_a_number_are_counted_and_the_commonest_are_given() -> None:
    numbers = [f"{n}.5" for n in range(95)]
    assert column([*numbers, "none", "oops", "none", None]).stray == StrayValues(3, ("none", "oops"))
    assert column(["1.234,50", "-2", "3e5", "1'000"] * 20).stray is None
    assert column([*numbers, *["word"] * 20]).stray is None
    assert column(["2025-01-25", "1.2.2025"] * 50).stray is None
    assert column([*numbers, "ada@example.org"]).stray is None
