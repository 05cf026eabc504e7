"""What a straight line makes of a table or of pictures, for scale: ridge regression, or logistic regression of classes.

Numbers and pixels are standardised and categories one-hot, and weights are held small by one squared norm (Hoerl and
Kennard, 1970), as scikit-learn's defaults have it. In float64 on one processor: the same rows give the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.training.config.shapes import ImageShape, TabularNumberShape, TabularShape
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import LABEL
from headway.training.evaluation.scorers import Columns, Measured, Predict

MAX_ROWS = 20_000
"""To fit on, spread evenly over the split: its few weights are not told better by more."""
MAX_CELLS = 1 << 23
"""Of the rows to fit on with their columns, at most: 64 MB."""
MAX_ONE_HOT = 256
"""Ids of a categorical column, at most; one with more is left out, for most of its weights would rest on few rows."""
MAX_PIXELS = 1024
"""Of a picture with all its channels: of a larger one the means of equal parts are read."""
MAX_PIXEL_CELLS = 1 << 22
"""Of the pictures to fit on with their pixels: some seconds of one core."""
MAX_PICTURES_BYTES = 1 << 28
"""Of the pictures to fit on, as they are read."""
ROWS_AT_ONCE = 256
MAX_ITERATIONS = 300
TOLERANCE = 1e-5
"""Of the mean gradient: the figure is for scale, and has changed no digit that is shown for long."""


def fitted_linear_model(
    reader: ShardReader,
    shape: TabularShape | TabularNumberShape | ImageShape,
    *,
    on_part: Callable[[], None] = lambda: None,
) -> Predict:
    """The model, fitted on rows of the training split that `reader` reads."""
    features = Pixels(shape) if isinstance(shape, ImageShape) else Features(shape)
    num_rows = min(reader.num_rows, MAX_ROWS, max(1, features.max_rows))
    rows = np.linspace(0, reader.num_rows - 1, num_rows).astype(np.int64)
    columns = reader.gather(rows)
    inputs = features.standardised(columns)
    label = torch.from_numpy(columns[LABEL].reshape(-1))
    if isinstance(shape, TabularNumberShape):
        weights = ridge(inputs, label.double())
        return lambda columns: _number(features(columns) @ weights, columns)
    weights = logistic(inputs, label.long(), shape.num_classes, on_part=on_part)
    return lambda columns: _classes(features(columns) @ weights, columns)


class Features:
    """Blocks of a table to (rows, columns) float64: numbers by the fitted rows' deviation, ids one-hot, and a one."""

    def __init__(self, shape: TabularShape | TabularNumberShape) -> None:
        self._num_numeric = shape.num_numeric
        self._one_hot = {place: size for place, size in enumerate(shape.cardinalities) if size <= MAX_ONE_HOT}
        self._mean, self._deviation = torch.zeros(shape.num_numeric), torch.ones(shape.num_numeric)
        self.num_columns = shape.num_numeric + sum(self._one_hot.values()) + 1
        self.max_rows = MAX_CELLS // self.num_columns

    def standardised(self, columns: Columns) -> Tensor:
        """Take mean and deviation of these rows for all rows."""
        if self._num_numeric:
            numeric = torch.from_numpy(columns["numeric"]).double()
            self._mean, self._deviation = numeric.mean(dim=0), numeric.std(dim=0, correction=0)
            self._deviation[self._deviation == 0] = 1.0
        return self(columns)

    def __call__(self, columns: Columns) -> Tensor:
        blocks = []
        if self._num_numeric:
            blocks.append((torch.from_numpy(columns["numeric"]).double() - self._mean) / self._deviation)
        for place, size in self._one_hot.items():
            ids = torch.from_numpy(columns["categorical"][:, place].astype(np.int64))
            blocks.append(torch.nn.functional.one_hot(ids, size).double())
        blocks.append(torch.ones(len(columns[LABEL]), 1, dtype=torch.float64))
        return torch.cat(blocks, dim=1)


class Pixels:
    """Pictures to (rows, columns) float64: brightness by the fitted rows' deviation, and a one.

    The least power of two parts each side so that no more than `MAX_PIXELS` are left.
    """

    def __init__(self, shape: ImageShape) -> None:
        self._side = 1
        while self._num_pixels(shape) > MAX_PIXELS:
            self._side *= 2
        self.num_columns = self._num_pixels(shape) + 1
        picture_bytes = shape.channels * shape.height * shape.width
        self.max_rows = min(MAX_PIXEL_CELLS // self.num_columns, MAX_PICTURES_BYTES // picture_bytes)
        self._mean = torch.zeros(self.num_columns - 1, dtype=torch.float64)
        self._deviation = torch.ones_like(self._mean)

    def _num_pixels(self, shape: ImageShape) -> int:
        return shape.channels * math.ceil(shape.height / self._side) * math.ceil(shape.width / self._side)

    def standardised(self, columns: Columns) -> Tensor:
        """Take mean and deviation of these rows for all rows."""
        pixels = self._pooled(columns)
        self._mean, self._deviation = pixels.mean(dim=0), pixels.std(dim=0, correction=0)
        self._deviation[self._deviation == 0] = 1.0
        return self(columns)

    def __call__(self, columns: Columns) -> Tensor:
        pixels = (self._pooled(columns) - self._mean) / self._deviation
        return torch.cat((pixels, torch.ones(len(pixels), 1, dtype=torch.float64)), dim=1)

    def _pooled(self, columns: Columns) -> Tensor:
        pictures = torch.from_numpy(columns["image"])
        if self._side > 1:
            # In float32, a batch at a time: pictures are many times larger than what is left of them.
            parts = [
                torch.nn.functional.avg_pool2d(some.float(), self._side, ceil_mode=True)
                for some in torch.split(pictures, ROWS_AT_ONCE)
            ]
            pictures = torch.cat(parts)
        return pictures.reshape(len(pictures), -1).double()


def ridge(inputs: Tensor, label: Tensor) -> Tensor:
    """Weights (columns,) of the least squared error plus the squared norm; the last column's is free."""
    penalty = torch.ones(inputs.shape[1], dtype=torch.float64)
    penalty[-1] = 0.0
    # A little on the free weight too: a table without rows for a category has no unique solution otherwise.
    weights: Tensor = torch.linalg.solve(inputs.T @ inputs + torch.diag(penalty + 1e-9), inputs.T @ label)
    return weights


def logistic(inputs: Tensor, label: Tensor, num_classes: int, *, on_part: Callable[[], None] = lambda: None) -> Tensor:
    """Weights (columns, classes) of the least nats plus half the squared norm.

    Steps along the inverse of a bound on the curvature (Böhning, 1992), with momentum that restarts where it leads
    uphill (O'Donoghue and Candès, 2015): each goes down, and none needs a line search.
    """
    penalty = torch.ones(inputs.shape[1], 1, dtype=torch.float64)
    penalty[-1] = 0.0
    bound = inputs.T @ inputs / 2 + torch.diag(penalty[:, 0] + 1e-9)
    factor, _ = torch.linalg.cholesky_ex(bound)
    wanted = torch.nn.functional.one_hot(label, num_classes).double()
    weights = ahead = torch.zeros(inputs.shape[1], num_classes, dtype=torch.float64)
    momentum = 1.0
    for _ in range(MAX_ITERATIONS):
        gradient = inputs.T @ (torch.softmax(inputs @ ahead, dim=1) - wanted) + penalty * ahead
        on_part()
        if float(gradient.abs().max()) < TOLERANCE * len(label):
            break
        stepped = ahead - torch.cholesky_solve(gradient, factor)
        if float(((ahead - stepped) * (stepped - weights)).sum()) > 0:
            momentum = 1.0
        before, momentum = momentum, (1 + math.sqrt(1 + 4 * momentum * momentum)) / 2
        weights, ahead = stepped, stepped + (before - 1) / momentum * (stepped - weights)
    return ahead


def _number(predicted: Tensor, columns: Columns) -> Measured:
    label: NDArray[Any] = columns[LABEL].astype(np.float64)
    return {"squared_error": np.square(predicted.numpy()[:, None] - label)}


def _classes(logits: Tensor, columns: Columns) -> Mapping[str, NDArray[np.float64]]:
    label = torch.from_numpy(columns[LABEL].reshape(-1).astype(np.int64))
    nats = torch.nn.functional.cross_entropy(logits, label, reduction="none")
    correct = (logits.argmax(dim=1) == label).double()
    return {"nats": nats.numpy()[:, None], "correct": correct.numpy()[:, None]}
