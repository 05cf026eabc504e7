"""Values to whole numbers: categories counted over the training split, in any order, and looked up when encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from headway.data_contracts.store.errors import DataError
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.source_columns import column_of, other_than_fitted, plain

MAX_DISTINCT = 1 << 25
"""Distinct values that are counted before a column is refused: it is no category then."""

Value = int | str


def canonical(block: SourceBlock, name: str, *, fitted: str = "") -> pa.Array:
    """The column as int64 or string, whatever its width.

    Args:
        fitted: as for `column_of`.

    Raises:
        DataError: of another type.
    """
    column = plain(column_of(block.batch, name, block.path, fitted=fitted))
    # Booleans count as whole numbers, so that a column may change between the two.
    if types.is_integer(column.type) or types.is_boolean(column.type):
        return pc.cast(column, pa.int64())
    if types.is_string(column.type):
        return column
    if fitted:
        raise other_than_fitted(block, name, column.type, fitted)
    raise DataError(
        f"column {name!r} is {column.type}; categories are whole numbers, booleans or texts.", where=block.path
    )


class Categories:
    """Counts of a column's values; the sum over threads is the same in any order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[Value] = Counter()

    def add(self, block: SourceBlock) -> None:
        # Counted by Arrow in a batch; only distinct values reach Python.
        counted = pc.value_counts(canonical(block, self.name).drop_null())
        self.counts.update(dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)))
        if len(self.counts) > MAX_DISTINCT:
            raise DataError(f"column {self.name!r} has more than {MAX_DISTINCT:,} values.", where=block.path)

    def merge(self, other: Categories) -> None:
        self.counts.update(other.counts)

    def values(self, most: int | None = None) -> list[Value]:
        """The values in order; of more than `most` the commonest, and of equally common ones the first."""
        kinds = sorted({type(value).__name__ for value in self.counts})
        # Texts and numbers have no common order, and a column of both is most likely two formats of one thing.
        if len(kinds) > 1:
            raise DataError(f"column {self.name!r} holds {' and '.join(kinds)} in different files.")
        # Ties by value: the choice must not depend on the order of rows.
        ranked = sorted(self.counts, key=lambda value: (-self.counts[value], value))
        return sorted(ranked[:most])


class Lookup:
    """Numbers of known values, from 0 in the order given; -1 for any other, and for null."""

    def __init__(self, name: str, values: Sequence[Value]) -> None:
        self.name = name
        self._values = pa.array(values, type=pa.int64() if values and isinstance(values[0], int) else pa.string())
        self._fitted = "whole numbers" if types.is_integer(self._values.type) else "texts"
        self._dense = _dense_table(values)

    def numbers(self, block: SourceBlock) -> NDArray[np.int32]:
        """Shape (rows,).

        Raises:
            DataError: texts where whole numbers were learnt, or the other way round.
        """
        column = canonical(block, self.name, fitted=self._fitted)
        if column.type != self._values.type:
            raise other_than_fitted(block, self.name, column.type, self._fitted)
        # Dense numbers are looked up in a table, which is much faster than by hash.
        if self._dense is not None and not column.null_count:
            return self._from_table(column.to_numpy())
        # `skip_nulls`: a null is unknown, not a category of its own.
        found: NDArray[Any] = pc.fill_null(pc.index_in(column, value_set=self._values, skip_nulls=True), -1).to_numpy()
        return found.astype(np.int32, copy=False)

    def _from_table(self, values: NDArray[np.int64]) -> NDArray[np.int32]:
        assert self._dense is not None
        first, table = self._dense
        # Seen as unsigned, what lies before the table lies far behind it.
        places = (values - first).view(np.uint64)
        return table.take(np.minimum(places, np.uint64(len(table) - 1)).view(np.int64))


def _dense_table(values: Sequence[Value]) -> tuple[np.int64, NDArray[np.int32]] | None:
    """The first value, and by distance from it each one's number, with -1 in the gaps and at the end.

    None where a table would be much larger than the values.
    """
    if not values or not isinstance(values[0], int):
        return None
    known = np.array(values, dtype=np.int64)
    span = int(known[-1]) - int(known[0]) + 1
    # Memory in proportion to the values: keys spread over billions have no table.
    if span > 64 * len(known) + 1024:
        return None
    table = np.full(span + 1, -1, dtype=np.int32)
    table[known - known[0]] = np.arange(len(known), dtype=np.int32)
    return known[0], table
