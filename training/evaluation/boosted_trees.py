"""What boosted trees make of a table, for scale: scikit-learn's histogram trees, with its own defaults.

On one thread, and seeded: the same rows give the same trees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.training.config.shapes import TabularNumberShape, TabularShape
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import LABEL
from headway.training.evaluation.scorers import Columns, Measured, Predict

MAX_ROWS = 20_000
"""To fit on, spread evenly over the split."""
MAX_CELLS = 1 << 22
"""Of the rows to fit on with their columns, at most."""
MAX_IDS = 255
"""Of a categorical column that trees split by sets of ids; one with more is read as numbers."""
MAX_TREES = 500
"""An iteration takes one for each class, of more than two."""
ITERATIONS = 100


def fitted_trees(reader: ShardReader, shape: TabularShape | TabularNumberShape) -> Predict:
    """The trees, fitted on rows of the training split that `reader` reads."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    num_columns = shape.num_numeric + len(shape.cardinalities)
    num_rows = min(reader.num_rows, MAX_ROWS, max(1, MAX_CELLS // num_columns))
    columns = reader.gather(np.linspace(0, reader.num_rows - 1, num_rows).astype(np.int64))
    label = columns[LABEL].reshape(-1)
    by_ids = [False] * shape.num_numeric + [size <= MAX_IDS for size in shape.cardinalities]
    num_classes = 0 if isinstance(shape, TabularNumberShape) else shape.num_classes
    trees_of_one = num_classes if num_classes > 2 else 1
    model = (HistGradientBoostingClassifier if num_classes else HistGradientBoostingRegressor)(
        categorical_features=by_ids, random_state=0, max_iter=max(1, min(ITERATIONS, MAX_TREES // trees_of_one))
    )
    with threadpool_limits(limits=1):
        model.fit(_features(columns), label)

    def predict(columns: Columns) -> Measured:
        label = columns[LABEL]
        with threadpool_limits(limits=1):
            if not num_classes:
                return {"squared_error": np.square(model.predict(_features(columns))[:, None] - label)}
            shares = model.predict_proba(_features(columns))
        # A class that no row to fit on has is not impossible.
        all_classes = np.full((len(label), num_classes), 1 / (num_rows + 1))
        all_classes[:, model.classes_] = np.maximum(shares, np.finfo(np.float64).eps)
        likeliest = all_classes.argmax(axis=1)[:, None]
        nats = -np.log(np.take_along_axis(all_classes, label.astype(np.int64), axis=1))
        return {"nats": nats, "correct": (likeliest == label).astype(np.float64)}

    return predict


def _features(columns: Columns) -> NDArray[np.float64]:
    """Numbers and category ids side by side, (rows, columns)."""
    blocks = [columns[name].astype(np.float64) for name in ("numeric", "categorical") if name in columns]
    return np.concatenate(blocks, axis=1)
