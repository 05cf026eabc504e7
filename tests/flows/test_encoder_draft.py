"""A drafted encoder reads the columns that can be trained on, and leaves out keys and what may be personal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headway.data_contracts.drafting.profile import profile_rows
from headway.data_contracts.types.column_types import type_name
from headway.flows.act.pipeline_draft import RECIPES, draft_encoder, recipe_for
from headway.training.config.encoder_specs import ENCODER_SPEC
from headway.training.recipes.built_in import BUILT_IN

NUM_ROWS = 300


def drafted(columns: Mapping[str, Any], *, is_text: bool = False) -> dict[str, Any]:
    table = pa.table(dict(columns))
    with duckdb.connect() as connection:
        connection.register("rows", table)
        profile = profile_rows(connection, {field.name: type_name(field.type) for field in table.schema})
    fields = draft_encoder(profile, is_text=is_text)
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
