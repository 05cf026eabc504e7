"""What flows through an encoder: rows of the source in, rows of a shard group out, some at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SourceBlock(NamedTuple):
    """Some rows of one source file."""

    path: str
    row_numbers: NDArray[np.int64]
    """Of the batch's rows in their file."""
    ids: NDArray[np.uint64]
    """A name of 64 bits for each row, from its file's path and its number."""
    batch: Any
    """The rows themselves, an Arrow record batch."""


class EncodedBlock(NamedTuple):
    """Some rows of a shard group, before the shuffle."""

    ids: NDArray[np.uint64]
    """A name of 64 bits for each row; the shuffle orders rows by SplitMix64 of it."""
    values: dict[str, NDArray[Any]]
    """By column, shape (rows, *column.shape)."""
