"""Columns of a source's record batches, found by name and in few types, with refusals that name file and row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.quarantine_limit import DEFAULT_LIMIT_RATIO
from headway.training.data.encode.blocks import SourceBlock

QUARANTINE = (
    "Let the contract refuse such rows, or leave them out by rules with `action: quarantine` and a "
    f"`quarantine_limit_ratio` of their share or more; it is {DEFAULT_LIMIT_RATIO} unless the contract says another."
)
FIT_AGAIN = "raise shards.fit to fit again on today's data (`headway plan` says what that undoes)."
AS_FITTED = f"Bring it back as it was, or say in shards.encoder what there is now and {FIT_AGAIN}"


def column_of(batch: pa.RecordBatch, name: str, path: str, *, fitted: str = "") -> pa.Array:
    """The column of this name.

    Args:
        fitted: what the fitted state takes it for, such as `numbers`; empty while nothing is fitted.

    Raises:
        DataError: there is none.
    """
    index = batch.schema.get_field_index(name)
    if index < 0:
        known = ", ".join(batch.schema.names[:20])
        once = f", which was fitted as {fitted}" if fitted else ""
        advice = AS_FITTED if fitted else "Check `shards`."
        raise DataError(f"has no column {name!r}{once}; there are {known}.", where=path, advice=advice)
    return batch.column(index)


def other_than_fitted(block: SourceBlock, name: str, kind: pa.DataType, fitted: str) -> DataError:
    """What became of a column, and what the fitted state takes it for."""
    return DataError(f"column {name!r} is {kind} and was fitted as {fitted}.", where=block.path, advice=AS_FITTED)


def plain(column: pa.Array) -> pa.Array:
    """The same values without a dictionary, large offsets or views."""
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_large_string(column.type) or types.is_string_view(column.type):
        return pc.cast(column, pa.string())
    if types.is_large_binary(column.type) or types.is_binary_view(column.type):
        return pc.cast(column, pa.binary())
    return column


def refuse_rows(
    block: SourceBlock, broken: NDArray[np.bool_], name: str, what: str, *, advice: str = QUARANTINE
) -> None:
    """Raises `DataError` naming the first broken row, never a value of it."""
    if broken.any():
        row = int(block.row_numbers[int(broken.argmax())])
        others = int(broken.sum()) - 1
        more = f", and {others} more rows of the batch" if others else ""
        raise DataError(f"column {name!r} {what} in row {row}{more}.", where=block.path, advice=advice)


def numbers(block: SourceBlock, name: str, *, may_be_missing: bool, fitted: str = "") -> NDArray[Any]:
    """The column as float32 where it is that, as float64 otherwise; NaN where it is missing.

    Args:
        fitted: as for `column_of`.

    Raises:
        DataError: not numbers, an infinity, or a null or NaN where none may be.
    """
    column = plain(column_of(block.batch, name, block.path, fitted=fitted))
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        if not types.is_decimal(column.type):
            if fitted:
                raise other_than_fitted(block, name, column.type, fitted)
            raise DataError(f"column {name!r} is {column.type}, not a number.", where=block.path)
        column = pc.cast(column, pa.float64())
    has_nulls = column.null_count > 0
    if types.is_boolean(column.type) or (has_nulls and not types.is_floating(column.type)):
        column = pc.cast(column, pa.float64(), safe=False)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)  # a null becomes NaN
    if values.dtype not in (np.float32, np.float64):
        return values.astype(np.float64)
    # The sum of finite numbers can overflow, but no NaN or infinity can hide in a finite sum.
    with np.errstate(all="ignore"):
        is_finite = bool(np.isfinite(values.sum(dtype=np.float64)))
    if not is_finite:
        refuse_rows(block, np.isinf(values), name, "is infinite")
        if not may_be_missing:
            refuse_rows(block, np.isnan(values), name, "is null or NaN")
    return values


def whole_numbers(block: SourceBlock, name: str, column: pa.Array) -> NDArray[np.int64]:
    """Values as int64.

    Raises:
        DataError: not whole numbers, or a null.
    """
    if not types.is_integer(column.type):
        raise DataError(f"column {name!r} holds {column.type}, not whole numbers.", where=block.path)
    if column.null_count:
        refuse_rows(block, pc.is_null(column).to_numpy(zero_copy_only=False), name, "is null")
    values: NDArray[np.int64] = pc.cast(column, pa.int64()).to_numpy()
    return values


def texts(block: SourceBlock, name: str) -> list[bytes]:
    """The column's texts as bytes.

    Raises:
        DataError: not text, or a null (text that is not UTF-8 is null in a source of text files).
    """
    column = plain(column_of(block.batch, name, block.path))
    if not (types.is_string(column.type) or types.is_binary(column.type)):
        raise DataError(f"column {name!r} is {column.type}, not text.", where=block.path)
    if column.null_count:
        refuse_rows(block, pc.is_null(column).to_numpy(zero_copy_only=False), name, "is null or not UTF-8")
    return [value.as_buffer().to_pybytes() for value in column]
