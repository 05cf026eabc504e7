"""The split of rows that sharding will make, and what is predicted from which columns, for rules that look before there
are shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.scans.label_leaks import Label
from headway.data_contracts.scans.leakage import PipelineSplit
from headway.data_contracts.store.errors import ConfigError
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.config.given_split import GivenSplit
from headway.training.config.shards import TRAIN, ShardSpec
from headway.training.data.shards.splits import NAMES, NO_ROWS, SourceRows, rows_by_split, split_of


def pipeline_split(spec: ShardSpec, columns: Mapping[str, str]) -> PipelineSplit:
    """What stage *shard* will do, asked before it.

    Args:
        columns: the snapshot's, by name: a key is hashed as the type that its files have.

    Raises:
        ConfigError: the key is no column of the data.
    """
    given = spec.split
    if given is not None and given.column is not None:
        lenient = given.model_copy(update={"others": "leave_out"})  # sharding refuses; here they leak nothing
        kind = _kind_of(given.column, columns, "shards.split.column")
        return PipelineSplit(
            of_text=lambda text: NAMES[lenient.of_text(text)],
            of_rows=lambda _paths, _rows, values: _names_by_value(values, lenient, kind),
            key=given.column,
        )
    of_text = functools.partial(split_of, spec=spec)
    if spec.split_by == "file" or given is not None:
        return PipelineSplit(of_text=of_text)
    if spec.split_key is None:
        return PipelineSplit(of_text=of_text, of_rows=lambda paths, rows: _names_by_row(paths, rows, spec))
    kind = _kind_of(spec.split_key, columns, "shards.split_key")
    return PipelineSplit(
        of_text=of_text,
        of_rows=lambda _paths, _rows, keys: _names_by_key(keys, spec, kind),
        key=spec.split_key,
    )


def _kind_of(column: str, columns: Mapping[str, str], where: str) -> str:
    kind = columns.get(column)
    if kind is None:
        raise ConfigError(
            f"no column {column!r} in the data.", where=where, advice=f"Use one of {', '.join(sorted(columns))}."
        )
    return kind


def _names_by_value(values: Any, given: GivenSplit, kind: str) -> Any:
    import pyarrow as pa

    from headway.data_contracts.types.column_types import arrow_type

    codes = given.of_values(_whole(values).cast(arrow_type(kind)), "")
    return pa.array([NAMES[code] for code in range(len(NAMES))], pa.string()).take(pa.array(codes))


def _names_by_row(paths: Any, rows: Any, spec: ShardSpec) -> Any:
    import pyarrow as pa

    numbers = _whole(rows).to_numpy(zero_copy_only=False).astype(np.int64)
    encoded = _whole(paths).dictionary_encode()
    places = encoded.indices.to_numpy(zero_copy_only=False)
    names = np.full(len(numbers), TRAIN, dtype=object)
    for place, path in enumerate(encoded.dictionary.to_pylist()):
        # A row's hash is of its file and number, and each file is hashed at once.
        chosen = places == place
        names[chosen] = _names(_source(path), None, numbers[chosen], spec)
    return pa.array(names, pa.string())


def _names_by_key(keys: Any, spec: ShardSpec, kind: str) -> Any:
    import pyarrow as pa

    from headway.data_contracts.types.column_types import arrow_type

    batch = pa.record_batch({spec.split_key: _whole(keys).cast(arrow_type(kind))})
    return pa.array(_names(_source(""), batch, np.arange(len(keys)), spec), pa.string())


def _names(source: SourceRows, batch: Any, numbers: NDArray[np.int64], spec: ShardSpec) -> NDArray[np.object_]:
    names = np.full(len(numbers), TRAIN, dtype=object)
    for split, mask in rows_by_split(source, batch, numbers, spec):
        names[mask] = split
    return names


def _whole(array: Any) -> Any:
    import pyarrow as pa

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _source(path: str) -> SourceRows:
    return SourceRows(path=path, sha256="", size_bytes=0, num_rows=0, excluded=NO_ROWS, read=lambda: iter(()))


def pipeline_label(spec: ShardSpec) -> Label | None:
    """None where the encoder reads no columns that could tell the label each by itself, such as pictures or texts."""
    encoder = spec.encoder
    if not isinstance(encoder, TabularEncoderSpec) or encoder.label is None:
        return None
    return Label(column=encoder.label, is_class=encoder.predicts_class, inputs=encoder.inputs)
