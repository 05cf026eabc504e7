"""Rows as callers have them, as an Arrow table of the types that the model was fitted to."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.types.strict_yaml import LONGEST_NAME
from headway.training.data.encode.source_columns import plain
from headway.training.data.encode.times import WITH_ZONE, WITHOUT_ZONE

ROWS = "rows to predict"
MAX_NAMED = 5
"""Columns of a message."""
KINDS = "an Arrow table, a pandas or Polars frame, a dict of columns, a list of dicts, or one row as a dict or Series"


UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow and pandas say of values that they cannot take for a column."""


def as_table(rows: Any) -> pa.Table:
    """Raises `DataError`: none of the kinds that are taken, or columns that are no columns."""
    try:
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, Mapping):
            if not _has_columns(rows):
                return pa.table({name: [value] for name, value in rows.items()})
            _require_equal_length(rows)
            return pa.table({name: _dense(values) for name, values in rows.items()})
        if _is_series(rows):
            return as_table(dict(rows.items()))
        if isinstance(rows, Sequence) and not isinstance(rows, str) and all(isinstance(each, Mapping) for each in rows):
            # Of all rows, since Arrow would take the first row's keys alone and drop the others.
            names = dict.fromkeys(name for each in rows for name in each)
            return pa.table({name: [each.get(name) for each in rows] for name in names})
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__dataframe__"):
            _require_no_column_twice(rows)
            return pa.table(_dense_frame(rows))
    except UNREADABLE as error:
        what = _unreadable_column(rows) or f"they cannot be read as columns ({_message(error)})"
        raise DataError(f"{what}.", where=ROWS, advice="Give each column values of one kind.") from error
    raise DataError(f"a {type(rows).__name__} holds no rows.", where=ROWS, advice=f"Give {KINDS}.")


def _require_no_column_twice(frame: Any) -> None:
    """Raises `DataError`; of pandas' frames alone, for others have no such columns."""
    twice = [name for name, number in Counter(_frame_columns(frame)).items() if number > 1]
    if twice:
        what = f"have column{'s' * (len(twice) > 1)} {', '.join(map(repr, twice[:MAX_NAMED]))} twice."
        raise DataError(what, where=ROWS, advice="Give each column once.")


def _frame_columns(rows: Any) -> list[Any]:
    """Of a pandas or Polars frame; of Arrow's tables `columns` are no names."""
    return [*rows.columns] if hasattr(rows, "dtypes") else []


def _require_equal_length(columns: Mapping[Any, Any]) -> None:
    """Raises `DataError`, which names the columns of another length than most."""
    lengths = {name: len(values) for name, values in columns.items() if hasattr(values, "__len__")}
    usual = Counter(lengths.values()).most_common(1)[0][0]
    others = [f"{name!r} has {number:,}" for name, number in lengths.items() if number != usual]
    if others:
        like = next(name for name, number in lengths.items() if number == usual)
        raise DataError(
            f"are columns of unequal length: {like!r} has {usual:,} values, {', '.join(others[:MAX_NAMED])}.",
            where=ROWS,
            advice="Give each column one value for each row, null where there is none.",
        )


def _is_sparse(values: Any) -> bool:
    """Whether pandas keeps them without those that are equal, as Arrow cannot; pandas is not imported for that."""
    return _is_sparse_type(getattr(values, "dtype", None))


def _is_sparse_type(kind: Any) -> bool:
    return type(kind).__name__ == "SparseDtype"


def _dense(values: Any) -> Any:
    return np.asarray(values) if _is_sparse(values) else values


def _dense_frame(frame: Any) -> Any:
    names = _frame_columns(frame)
    sparse = [name for name, kind in zip(names, frame.dtypes, strict=True) if _is_sparse_type(kind)] if names else []
    if not sparse:
        return frame
    dense = frame.copy(deep=False)
    for name in sparse:
        dense[name] = _dense(frame[name])
    return dense


def _unreadable_column(rows: Any) -> str:
    """The first that cannot be read by itself, and why; empty where each can."""
    if isinstance(rows, Sequence):
        columns = [
            (name, [each.get(name) for each in rows]) for name in dict.fromkeys(name for each in rows for name in each)
        ]
    else:
        is_one = isinstance(rows, Mapping) and not _has_columns(rows)
        items = rows.items() if hasattr(rows, "items") else ()
        columns = [(name, [value] if is_one else value) for name, value in items]
    for name, values in columns:
        try:
            pa.array(values)
        except UNREADABLE as error:
            return f"column {name!r} cannot be read: {_message(error)}"
    return ""


def _message(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "it holds a whole number of more than 64 bits"
    # Of texts that are no Unicode, Python quotes the text.
    if isinstance(error, UnicodeError):
        return "it holds a text that is no Unicode"
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def with_fitted_types(table: pa.Table, fitted_types: Mapping[str, pa.DataType], first_row: int = 0) -> pa.Table:
    """The columns that the model reads, as it was fitted to them: the others are left out.

    Whole numbers that came as floats, as pandas has them where one is missing, are whole numbers again. A column
    without any value is of whatever type is wanted.

    Raises:
        DataError: a column is not there, twice there, or holds what is not of its fitted kind.
    """
    made = {}
    for name, wanted in fitted_types.items():
        place = _place(table.column_names, name, fitted_types)
        made[name] = _typed_column(table.column(place), name, wanted, first_row)
    return pa.table(made)


def require_readable(schema: pa.Schema, fitted_types: Mapping[str, pa.DataType]) -> None:
    """Raises `DataError`: rows of this schema lack a column, or have one of a kind that it was not fitted as."""
    for name, wanted in fitted_types.items():
        kind = schema.types[_place(schema.names, name, fitted_types)]
        if not types.is_null(kind):
            _typed(plain(pa.array([], kind)), name, wanted, 0)


def _place(names: Sequence[str], name: str, fitted_types: Mapping[str, pa.DataType]) -> int:
    found = [place for place, each in enumerate(names) if each == name]
    if len(found) == 1:
        return found[0]
    there = ", ".join(names[:20]) or "none"
    what = f"column {name!r} stands there twice." if found else f"there is no column {name!r}; there are {there}."
    # A column that the model reads as well is what it is called, and no misspelt other one.
    others = [each for each in names if each not in fitted_types and len(each) <= LONGEST_NAME]
    like = [] if found else difflib.get_close_matches(name, others, n=1)
    meant = f"Did you mean {like[0]!r}? " if like else ""
    raise DataError(what, where=ROWS, advice=f"{meant}The model reads {', '.join(fitted_types)}: give each once.")


def rows_with_all_values(table: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """(rows,): whether all of these columns hold a finite number or a time there."""
    whole = np.ones(table.num_rows, dtype=bool)
    for name in names:
        column = table.column(name)
        is_number = pc.is_finite(column) if types.is_floating(column.type) else pc.is_valid(column)
        whole &= pc.fill_null(is_number, False).to_numpy()
    return whole


def _typed_column(column: pa.ChunkedArray, name: str, wanted: pa.DataType, first_row: int) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), wanted)])
    # Piece by piece: joined, texts could be more than the 2 GB that an array holds.
    pieces = []
    for chunk in column.chunks:
        pieces.append(_typed(plain(chunk), name, wanted, first_row))
        first_row += len(chunk)
    return pa.chunked_array(pieces)


def _typed(column: pa.Array, name: str, wanted: pa.DataType, first_row: int) -> pa.Array:
    if types.is_floating(wanted):
        if not (types.is_primitive(column.type) or types.is_decimal(column.type)) or types.is_temporal(column.type):
            raise _other(name, column, "numbers")
        return column
    if types.is_integer(wanted):
        return _whole(column, name, first_row)
    if types.is_timestamp(wanted):
        return _times(column, name, wanted, first_row)
    if not types.is_string(column.type):
        raise _other(name, column, "texts")
    return column


def _times(column: pa.Array, name: str, wanted: pa.DataType, first_row: int) -> pa.Array:
    """Texts in ISO 8601 are times, as they are in a file of texts; dates are their first moment."""
    fitted = WITHOUT_ZONE if wanted.tz is None else WITH_ZONE
    if types.is_timestamp(column.type):
        if (column.type.tz is None) != (wanted.tz is None):
            raise _other(name, column, fitted, advice=_form(wanted))
        return column
    if types.is_date(column.type) and wanted.tz is None:
        return column
    if not types.is_string(column.type):
        raise _other(name, column, fitted, advice=_form(wanted))
    try:
        return pc.cast(column, wanted)
    except pa.ArrowInvalid:
        row = first_row + next(row for row in range(len(column)) if not _is_time(column[row : row + 1], wanted))
        # `from None`: Arrow's message quotes the value.
        raise _other(name, column, fitted, f", and holds another text in row {row}", advice=_form(wanted)) from None


def _form(wanted: pa.TimestampType) -> str:
    texts = "2026-01-31 or 2026-01-31T14:30:00" if wanted.tz is None else "2026-01-31T14:30:00Z"
    return f"Texts are written as {texts}; else convert it to the type of the rows that the model was trained on."


def _is_time(text: pa.Array, wanted: pa.DataType) -> bool:
    try:
        pc.cast(text, wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _whole(column: pa.Array, name: str, first_row: int) -> pa.Array:
    if types.is_integer(column.type) or types.is_boolean(column.type):
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid as error:
            is_larger = pc.fill_null(pc.greater(column, pa.scalar((1 << 63) - 1, pa.uint64())), False)
            row = first_row + int(np.argmax(is_larger.to_numpy(zero_copy_only=False)))
            more = f", and holds one of more than 63 bits in row {row}"
            raise _other(name, column, "whole numbers", more) from error
    if not types.is_floating(column.type):
        raise _other(name, column, "whole numbers")
    # pandas has whole numbers with gaps as floats with NaN, which no integer can be.
    values = pc.if_else(pc.is_nan(column), None, column)
    try:
        return pc.cast(values, pa.int64())
    except pa.ArrowInvalid as error:
        fits = pc.and_(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), float(1 << 63)))
        is_whole = pc.fill_null(fits, True).to_numpy(zero_copy_only=False)
        row = first_row + int(np.argmin(is_whole))
        raise _other(name, column, "whole numbers", f", and holds another in row {row}") from error


CONVERT = "Convert it to the type of the rows that the model was trained on."


def _other(name: str, column: pa.Array, fitted: str, more: str = "", *, advice: str = CONVERT) -> DataError:
    return DataError(f"column {name!r} is {column.type} and was fitted as {fitted}{more}.", where=ROWS, advice=advice)


def _has_columns(rows: Mapping[Any, Any]) -> bool:
    return any(
        isinstance(value, Sequence | np.ndarray | pa.Array | pa.ChunkedArray) and not isinstance(value, str | bytes)
        for value in rows.values()
    ) or any(_is_series(value) for value in rows.values())


def _is_series(value: Any) -> bool:
    """pandas' or Polars', neither of which is imported for that."""
    return type(value).__name__ == "Series" and hasattr(value, "items")
