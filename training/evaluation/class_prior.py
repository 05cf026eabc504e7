"""The baseline that a first classifier must beat: how common each class is in the training split, whatever the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]]


class ClassPrior:
    """Shares of the classes, with one more row of each (Laplace, 1814), so that none is impossible.

    Args:
        labels: of the training split, (rows,).
        num_classes: how many there may be.
    """

    def __init__(self, labels: Labels, num_classes: int) -> None:
        counts = np.bincount(labels, minlength=num_classes) + 1.0
        self._nats = -np.log(counts / counts.sum())

    def nats(self, labels: Labels) -> NDArray[np.float64]:
        """What each class costs, in the shape of `labels`."""
        return np.asarray(self._nats[labels], dtype=np.float64)

    def correct(self, labels: Labels) -> NDArray[np.float64]:
        """1 where the class is the commonest one, of equally common ones the first; else 0."""
        return np.asarray(labels == self._nats.argmin(), dtype=np.float64)
