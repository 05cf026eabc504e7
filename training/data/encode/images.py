"""Pictures: a uint8 block a row, from one column that holds a whole picture or from a column for each pixel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json, PayloadColumn
from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import ImageEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.categories import Categories
from headway.training.data.encode.protocol import RowByRow
from headway.training.data.encode.source_columns import (
    QUARANTINE,
    column_of,
    numbers,
    other_than_fitted,
    plain,
    refuse_rows,
)
from headway.training.data.encode.tabular import ClassLabel, class_values
from headway.training.data.encode.token_ids import is_list

BRIGHTEST = 255


class ImageFit:
    """Classes, and brightness over all pixels of the training split, exactly."""

    def __init__(self, spec: ImageEncoderSpec) -> None:
        self._spec = spec
        self._classes = Categories(spec.label)
        self._num_values, self._total, self._squares = 0, 0, 0

    def add(self, block: SourceBlock) -> None:
        self._classes.add(block)
        # A histogram: 256 counts give mean and deviation exactly, whatever the order of rows.
        counts = np.bincount(pixels(self._spec, block).reshape(-1), minlength=BRIGHTEST + 1).tolist()
        self._num_values += sum(counts)
        self._total += sum(value * count for value, count in enumerate(counts))
        self._squares += sum(value * value * count for value, count in enumerate(counts))

    def merge(self, other: ImageFit) -> None:
        self._classes.merge(other._classes)
        self._num_values += other._num_values
        self._total += other._total
        self._squares += other._squares

    def statistics(self) -> Json:
        """Mean and deviation on a scale of 0 to 1."""
        values = class_values(self._classes)
        mean = Fraction(self._total, self._num_values)
        # As fractions: no rounding until the end.
        variance = Fraction(self._squares, self._num_values) - mean * mean
        return {
            "mean": float(mean / BRIGHTEST),
            "deviation": math.sqrt(variance / BRIGHTEST**2),
            "label": {"column": self._spec.label, "values": values},
        }


class ImageEncoder:
    """Rows to pictures.

    Args:
        statistics: what `ImageFit` learnt.
    """

    def __init__(self, spec: ImageEncoderSpec, statistics: Json) -> None:
        self._spec = spec
        self._label = ClassLabel(spec.label, statistics["label"]["values"])
        self.num_classes = self._label.num_classes
        self.columns: tuple[PayloadColumn, ...] = (
            PayloadColumn(name="image", dtype="uint8", shape=spec.payload_shape),
            PayloadColumn(name="label", dtype="int32", shape=(1,)),
        )

    def stream(self, seed: int) -> RowByRow:
        return RowByRow(self.encode)

    def encode(self, block: SourceBlock) -> Mapping[str, NDArray[Any]]:
        return {"image": pixels(self._spec, block, fitted="pictures"), "label": self._label(block)[:, None]}


def pixels(spec: ImageEncoderSpec, block: SourceBlock, *, fitted: str = "") -> NDArray[np.uint8]:
    """Shape (rows, channels, height, width), scaled so that `max_value` is 255, rounded half to even.

    Args:
        fitted: as for `column_of`.

    Raises:
        DataError: a value outside [0, max_value], missing, or a picture of another size.
    """
    columns = spec.columns
    if len(columns) == 1 and spec.num_values > 1:
        values = _whole_pictures(spec, block, columns[0], fitted)
    else:
        values = np.stack([numbers(block, name, may_be_missing=False, fitted=fitted) for name in columns], axis=1)
    # Bytes on the full scale are pictures already; checking them would cost a pass over every pixel.
    if values.dtype != np.uint8 or spec.max_value != BRIGHTEST:
        # NaN is in no range.
        outside: NDArray[np.bool_] = np.any(~((values >= 0) & (values <= spec.max_value)), axis=1)
        name = columns[0] if len(columns) == 1 else f"{columns[0]} to {columns[-1]}"
        refuse_rows(block, outside, name, f"holds a value outside [0, {spec.max_value:g}]")
        # Half to even, as numpy and torch round, so that a picture converted elsewhere has the same bytes.
        values = np.rint(values * (BRIGHTEST / spec.max_value)).astype(np.uint8)
    return values.reshape(len(values), *spec.payload_shape)


def _whole_pictures(spec: ImageEncoderSpec, block: SourceBlock, name: str, fitted: str) -> NDArray[Any]:
    """Shape (rows, values)."""
    column = plain(column_of(block.batch, name, block.path, fitted=fitted))
    if column.null_count:
        refuse_rows(block, pc.is_null(column).to_numpy(zero_copy_only=False), name, "is null")
    if types.is_binary(column.type) or types.is_fixed_size_binary(column.type):
        lengths = pc.binary_length(column).to_numpy()
    elif is_list(column.type):
        lengths = pc.list_value_length(column).to_numpy()
    elif fitted:
        raise other_than_fitted(block, name, column.type, fitted)
    else:
        raise DataError(f"column {name!r} is {column.type}, neither binary nor a list.", where=block.path)
    refuse_rows(block, lengths != spec.num_values, name, f"does not hold {spec.num_values} values")
    if is_list(column.type):
        flat = plain(column.flatten())
        if flat.null_count:
            raise DataError(f"a picture in column {name!r} holds a null.", where=block.path, advice=QUARANTINE)
        if not (types.is_integer(flat.type) or types.is_floating(flat.type)):
            raise DataError(f"column {name!r} holds {flat.type}, not numbers.", where=block.path)
        values: NDArray[Any] = flat.to_numpy()
    else:
        # Joined without a loop over pixels: every picture has the same length.
        values = np.frombuffer(b"".join(value.as_buffer() for value in column), dtype=np.uint8)
    return values.reshape(-1, spec.num_values)
