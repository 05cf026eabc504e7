"""How a first model of a table is trained, by how many rows and columns it has.

The figures were chosen on tables of 150 to 54,000 rows, `benchmarks/tables_data.py` and others that packages ship, none
of them by the held-out rows of one table alone; `python -m benchmarks.tables` holds the drafts against boosted trees.
"""

from __future__ import annotations

import math
from typing import NamedTuple

ROWS_A_STEP = 40
"""Steps of an epoch that a batch is cut for, as far as its limits let it."""
LEAST_BATCH, LARGEST_BATCH = 32, 256
EPOCHS = 25
"""Fewer leave much unlearnt, and more make a model of few rows sure of what is chance."""
MOST_STEPS = 3000
MOST_COLUMNS_OF_WAVES = 256
"""Beyond these, reading each number through waves costs more than it tells."""

SMALL, LARGE = 2_000, 15_000
"""Rows. An ensemble does most where there are few, and over many the same time buys more as further steps."""


class TableTraining(NamedTuple):
    """What a draft says of training; units as in the pipeline file."""

    batch: int
    epochs: int
    warmup_steps: int
    lr: float
    weight_decay: float
    width: int
    dropout: float
    frequencies: int
    members: int

    @property
    def model(self) -> dict[str, int | float]:
        """The recipe's fields."""
        fields = {"width": self.width, "depth": 2, "dropout": self.dropout}
        waves = {"frequencies": self.frequencies} if self.frequencies else {}
        return fields | waves | ({"members": self.members} if self.members > 1 else {})

    def steps(self, num_rows: int) -> int:
        return max(1, round(self.epochs * num_rows / self.batch))


def table_training(num_rows: int, num_numeric: int) -> TableTraining:
    """A draft for so many training rows with so many columns of numbers."""
    batch = min(max(_power_of_two(num_rows / ROWS_A_STEP), LEAST_BATCH), LARGEST_BATCH)
    epochs = max(1, min(EPOCHS, MOST_STEPS * batch // max(1, num_rows)))
    is_small = num_rows < SMALL
    return TableTraining(
        batch=batch,
        epochs=epochs,
        warmup_steps=max(5, round(epochs * num_rows / batch / 20)),
        lr=0.002,
        weight_decay=0.1 if is_small else 0.01,
        width=64 if is_small else 128,
        dropout=0.3 if is_small else 0.1,
        frequencies=16 if 0 < num_numeric <= MOST_COLUMNS_OF_WAVES else 0,
        members=8 if is_small else 4 if num_rows < LARGE else 1,
    )


def _power_of_two(number: float) -> int:
    return 1 << max(0, round(math.log2(max(1.0, number))))
