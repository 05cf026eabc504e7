"""A draft looks for leaks in as many rows as are held in memory, chosen from all of them, and says how many."""

from __future__ import annotations

import duckdb
import pytest

from headway.data_contracts.drafting import leaking_inputs as module
from headway.data_contracts.drafting.leaking_inputs import LeakingInputs, leaking_inputs
from headway.data_contracts.scans.label_leaks import Label
from headway.data_contracts.scans.rows_database import NAMED_ROWS
from headway.data_contracts.tables.rows_files import FILE_COLUMN, ROW_COLUMN

TYPES = {"x": "double", "noise": "int64", "y": "string", "other": "string"}
LABEL = Label(column="y", is_class=True, inputs=("x", "noise"))


def found(num_rows: int) -> LeakingInputs:
    """Of rows that are sorted by their class."""
    with duckdb.connect() as connection:
        connection.execute(
            f"CREATE VIEW {NAMED_ROWS} AS SELECT n // 1000 AS {FILE_COLUMN}, n AS {ROW_COLUMN}, n::DOUBLE AS x, "
            f"hash(n) % 7 AS noise, if(n < {num_rows // 2}, 'a', 'b') AS y, 'c' AS other FROM range({num_rows}) t(n)"
        )
        return leaking_inputs(connection, LABEL, TYPES, num_rows)


def test_all_rows_of_a_small_table_are_looked_at() -> None:
    assert found(1000) == LeakingInputs(label="y", certain=("x",), likely=(), rows="all rows")


@pytest.mark.parametrize(("bound", "most"), [("MAX_ROWS", 300), ("MAX_CELLS", 3 * 300)])
def test_of_a_large_one_a_sample_from_all_of_it_is_and_the_same_each_time(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(module, bound, most)
    leaks = found(3000)
    assert leaks.certain == ("x",), "the first rows alone have one class"
    num_seen, words = leaks.rows.split(" ", 1)
    assert words == "of 3,000 rows" and 200 < int(num_seen) < 400
    assert found(3000) == leaks


def test_rows_that_cannot_be_asked_are_no_rows_without_a_leak() -> None:
    label = Label(column="y", is_class=True, inputs=("gone",))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW {NAMED_ROWS} AS SELECT 'a' AS y")
        assert leaking_inputs(connection, label, {"y": "string", "gone": "double"}, 1000) == LeakingInputs(
            label="y", rows=""
        )


def test_a_column_is_said_to_be_what_it_is() -> None:
    leaks = LeakingInputs(label="y", certain=("a",), likely=("b",), rows="all rows")
    assert [leaks.named(name) for name in ("a", "b", "c")] == ["alone tells y", "alone nearly tells y", ""]
