"""A small table of orders, written as users write theirs."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

NUM_ROWS = 600
EMAIL = "ada.lovelace@example.org"


def orders() -> pa.Table:
    chance, numbers = random.Random(0), range(NUM_ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "amount": pa.array([round(chance.gauss(50, 10), 2) for _ in numbers]),
            "country": pa.array([chance.choice(["DE", "FR", "US"]) for _ in numbers]),
            "label": pa.array([chance.randrange(10) for _ in numbers], pa.int64()),
            "contact": pa.array([f"{number}.{EMAIL}" for number in numbers]),
            "discount": pa.array([None if number % 7 else 0.5 * number for number in numbers]),
        }
    )


def write_parquet(folder: Path, table: pa.Table | None = None) -> None:
    folder.mkdir()
    whole = orders() if table is None else table
    pq.write_table(whole.slice(0, NUM_ROWS // 2), folder / "a.parquet")
    pq.write_table(whole.slice(NUM_ROWS // 2), folder / "b.parquet")
