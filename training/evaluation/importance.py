"""Permutation importance (Breiman, 2001): what a held-out row costs more once one input is another row's.

Bounded in rows, also by what training took; seeded, and the same bits on any machine that scores alike. Inputs that
tell the same share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import LABEL
from headway.training.evaluation.scorers import Columns, Predict

MAX_ROWS = 1024
MIN_ROWS = 64
MAX_SCORED_ROWS = 1 << 18
"""Of all inputs together; with more inputs it is fewer rows."""
MIN_SCORED_ROWS = 1 << 13
"""As many cost little with any model."""
TRAINED_A_SCORED_ROW = 8
"""Rows trained on for each row that is scored here: the page of a short training costs a small share of it."""
MAX_INPUTS = 1000
BATCH_ROWS = 256


def num_rows_for(num_rows: int, num_inputs: int, num_trained_rows: int) -> int:
    """How many rows each input is permuted in.

    Args:
        num_rows: of the split.
        num_trained_rows: that training took, each as often as it took it.
    """
    scored = min(MAX_SCORED_ROWS, max(MIN_SCORED_ROWS, num_trained_rows // TRAINED_A_SCORED_ROW))
    return min(num_rows, MAX_ROWS, max(MIN_ROWS, scored // max(num_inputs, 1)))


def permutation_importance(
    reader: ShardReader,
    blocks: tuple[str, ...],
    predict: Predict,
    *,
    num_trained_rows: int,
    seed: int,
    on_part: Callable[[], None],
) -> dict[str, NDArray[Any]]:
    """`importance_rows` (rows,) of the split, and `importance` (inputs, rows): the decisive loss, permuted minus whole.

    Args:
        blocks: payload columns whose features are the inputs, in this order.
    """
    widths = {block: reader.gather(np.arange(1))[block].shape[1] for block in blocks}
    inputs = [(block, place) for block, width in widths.items() for place in range(width)][:MAX_INPUTS]
    num_rows = num_rows_for(reader.num_rows, len(inputs), num_trained_rows)
    rows = np.linspace(0, reader.num_rows - 1, num_rows).astype(np.int64)
    columns = reader.gather(rows)
    whole = _losses(columns, predict)
    importance = np.zeros((len(inputs), len(rows)))
    for number, (block, place) in enumerate(inputs):
        # One generator each: an input's figure does not depend on those before it. And one permutation: further rows
        # tell more of an input than the same rows once more.
        order = np.random.default_rng([seed, number]).permutation(len(rows))
        permuted = columns[block].copy()
        permuted[:, place] = permuted[order, place]
        importance[number] = _losses({**columns, block: permuted}, predict) - whole
        on_part()
    return {"importance_rows": rows, "importance": importance}


def _losses(columns: Columns, predict: Predict) -> NDArray[np.float64]:
    """(rows,): what decides."""
    starts = range(0, len(columns[LABEL]), BATCH_ROWS)
    parts = ({name: values[start : start + BATCH_ROWS] for name, values in columns.items()} for start in starts)
    measured = [predict(part) for part in parts]
    name = "nats" if "nats" in measured[0] else "squared_error"
    return np.concatenate([each[name].reshape(-1) for each in measured])
