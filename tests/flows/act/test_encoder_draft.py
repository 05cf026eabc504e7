"""A drafted encoder reads the columns that can be trained on, and leaves out keys and what may be personal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headway.data_contracts.drafting.profile import TableProfile, profile_rows
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.column_types import type_name
from headway.flows.act.encoder_draft import RECIPES, draft_encoder, excluded_columns, label_facts, recipe_for
from headway.training.config.encoder_specs import ENCODER_SPEC
from headway.training.recipes.built_in import BUILT_IN

NUM_ROWS = 300


def profiled(columns: Mapping[str, Any]) -> TableProfile:
    table = pa.table(dict(columns))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return profile_rows(connection, {field.name: type_name(field.type) for field in table.schema})


def drafted(columns: Mapping[str, Any], *, is_text: bool = False, label: str = "") -> dict[str, Any]:
    fields = draft_encoder(profiled(columns), is_text=is_text, label=label)
    assert ENCODER_SPEC.validate_python(fields).kind in RECIPES
    assert recipe_for(fields) in BUILT_IN
    return fields


def numbers(kind: Any = float) -> list[Any]:
    return [kind(number % 97) for number in range(NUM_ROWS)]


def test_numbers_and_small_sets_become_blocks_and_a_label_is_known_by_its_name() -> None:
    found = drafted(
        {
            "id": list(range(NUM_ROWS)),
            "amount": numbers(),
            "country": ["DE", "FR", "US"] * 100,
            "email": ["ada@example.org", "bob@example.org"] * 150,
            "target": [0, 1, 2] * 100,
        }
    )
    assert found == {
        "kind": "tabular",
        "numeric": ["amount"],
        "categorical": ["country"],
        "label": "target",
        "label_kind": "class",
    }


def test_a_label_of_many_values_is_a_number() -> None:
    a_number = drafted({"x": numbers(), "y": numbers()})
    assert a_number["label_kind"] == "number"
    assert recipe_for(a_number) == "tabular-regressor"


@pytest.mark.parametrize("hole", [None, float("nan")])
def test_numbers_with_holes_get_the_mean(hole: float | None) -> None:
    assert drafted({"x": pa.array([*numbers(), hole], pa.float64())})["missing"] == "mean"
    assert "missing" not in drafted({"x": numbers()})


def test_lists_of_whole_numbers_are_tokens_with_room_for_the_highest() -> None:
    tokens = pa.array([[number % 50, 7] for number in range(NUM_ROWS)], pa.list_(pa.int32()))
    found = drafted({"tokens": tokens, "x": numbers()})
    assert found == {"kind": "token-ids", "column": "tokens", "vocab_size": 50}


def test_a_column_of_long_texts_is_read_and_one_of_names_is_not() -> None:
    found = drafted({"title": [f"title {number}" for number in range(NUM_ROWS)], "body": ["word " * 100] * NUM_ROWS})
    assert (found["kind"], found["column"]) == ("byte-pair", "body")


def test_text_files_are_read_as_texts() -> None:
    assert drafted({"text": ["x"] * 5}, is_text=True)["kind"] == "byte-pair"


def test_where_nothing_can_be_trained_on_the_draft_is_still_valid() -> None:
    assert drafted({"email": ["ada@example.org"] * 5}) == {"kind": "tabular", "categorical": ["email"]}


def test_the_label_that_is_said_wins_over_one_that_is_guessed() -> None:
    columns = {"y": numbers(), "seats": [1, 2, 3] * 100, "fare": numbers()}
    assert drafted(columns)["label"] == "y"
    said = drafted(columns, label="fare")
    assert (said["label"], said["label_kind"], said["numeric"]) == ("fare", "number", ["y"])
    assert drafted(columns, label="seats")["label_kind"] == "class"


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("default", "y"), "y"),
        (("survived", "fare"), "survived"),
        (("fare", "default payment next month"), "default payment next month"),
        (("is_fraud", "Outcome"), "Outcome"),
        (("pos_y", "fare"), None),
    ],
)
def test_the_surest_name_is_the_label(names: tuple[str, ...], label: str | None) -> None:
    columns = {"x": numbers(), **{name: [0, 1] * (NUM_ROWS // 2) for name in names}}
    assert drafted(columns).get("label") == label


def test_counts_are_numbers_codes_are_categories_and_so_are_texts_that_recur() -> None:
    found = drafted(
        {
            "rooms_seen": [number % 9 for number in range(NUM_ROWS)],
            "grade": [1, 2, 3] * 100,
            "hour": [f"{number % 15:02d}h and more" for number in range(NUM_ROWS)],
            "note": [f"note {number % 150}" for number in range(NUM_ROWS)],
        }
    )
    assert (found["numeric"], found["categorical"]) == (["rooms_seen"], ["grade", "hour"])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        *(("tokens", "neither a class nor a number"), ("nothing", "holds only nulls")),
        *(("wieght", "Did you mean 'weight'"), ("long", "texts of up to 300 characters.*Shorten them")),
    ],
)
def test_a_label_that_nothing_could_predict_is_refused(label: str, message: str) -> None:
    columns = {
        "weight": numbers(),
        "tokens": pa.array([[1, 2]] * NUM_ROWS, pa.list_(pa.int32())),
        "nothing": pa.array([None] * NUM_ROWS, pa.float64()),
        "long": ["x" * 300, "y"] * (NUM_ROWS // 2),
    }
    with pytest.raises(ConfigError, match=message):
        drafted(columns, label=label)


def test_dates_and_times_are_read_and_where_some_are_missing_gaps_are_filled() -> None:
    days = [None if n % 7 == 0 else 19_000 + n for n in range(NUM_ROWS)]
    columns = {"born": pa.array(days, pa.date32()), "day": pa.array(days, pa.date32()), "target": ["a", "b"] * 150}
    columns["at"] = pa.array(range(NUM_ROWS), pa.timestamp("ms", tz="UTC"))
    fields = drafted(columns)
    assert (fields["times"], fields["missing"]) == (["born", "day", "at"], "mean")
    assert "birth_date" not in drafted({**columns, "birth_date": columns["born"]})["times"], "it may be personal"
    assert "times" not in drafted({"x": numbers(), "target": ["a", "b"] * 150})


@pytest.mark.parametrize("text", ["{:02d}.11.2025", "11/{:02d}/2025", "2025-11-{:02d}"])
def test_dates_that_are_texts_are_no_categories_however_few_there_are(text: str) -> None:
    columns = {"x": numbers(), "day": [text.format(1 + n % 10) for n in range(NUM_ROWS)], "target": [0, 1, 2] * 100}
    found = drafted(columns)
    assert "day" not in found["categorical"]
    (excluded,) = excluded_columns(profiled(columns), found, source_format="csv")
    assert excluded.column == "day" and excluded.reason.startswith("each text is a date")


def test_each_column_that_is_not_read_has_its_reason() -> None:
    profile = profiled(
        {
            "id": list(range(NUM_ROWS)),
            "email": ["ada@example.org", "bob@example.org"] * 150,
            "at": pa.array([0] * NUM_ROWS, pa.timestamp("s")),
            "x": numbers(),
            "target": ["a", "b"] * 150,
        }
    )
    excluded = dict(excluded_columns(profile, draft_encoder(profile, is_text=False), source_format="csv"))
    assert list(excluded) == ["id", "email", "at"]
    assert excluded["id"] == "no value occurs twice" and "personal" in excluded["email"]
    assert excluded["at"] == "is one and the same moment"


def test_times_with_a_zone_and_without_in_one_column_are_read_by_no_type() -> None:
    times = [f"2026-01-{n % 28 + 1:02}T00:{n % 60:02}:00" for n in range(NUM_ROWS)]
    columns = {
        "mixed": [f"{each}{'Z' * (n % 2)}" for n, each in enumerate(times)],
        "plain": times,
        "zoned": [f"{each}+01:00" for each in times],
        "x": numbers(),
    }
    profile = profiled(columns)
    excluded = dict(excluded_columns(profile, draft_encoder(profile, is_text=False), source_format="csv"))
    assert "no type reads both; write them alike" in excluded["mixed"]
    assert "`source.column_types`" in excluded["plain"] and "`source.column_types`" in excluded["zoned"]


def test_few_whole_numbers_to_predict_may_be_classes_and_are_said() -> None:
    def few(label: list[Any]) -> tuple[int, int] | None:
        profile = profiled({"x": [number % 97 / 2 for number in range(len(label))], "y": label})
        facts = label_facts(profile, draft_encoder(profile, is_text=False, label="y"), is_given=True)
        assert facts is not None
        return facts.few_integers

    assert few([1, 2, 4] * 13) == (1, 4)
    assert few([1, 2, 4] * 100) is None, "a class, as its own line says"
    assert few(list(range(11)) * 5) is None
    assert few([1.5, 2.5, 4.5] * 13) is None
