"""The split of rows that sharding will make, for rules that look over its edge before there are shards."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_contracts.errors import ConfigError
from data_contracts.leakage import PipelineSplit
from training.data.spec import HELDOUT, TRAIN, ShardSpec
from training.data.splits import NO_ROWS, SourceRows, heldout_rows, split_of


def pipeline_split(spec: ShardSpec, columns: Mapping[str, str]) -> PipelineSplit:
    """What stage *shard* will do, asked before it.

    Args:
        columns: the snapshot's, by name: a key is hashed as the type that its files have.

    Raises:
        ConfigError: the key is no column of the data.
    """
    of_text = functools.partial(split_of, spec=spec)
    if spec.split_by == "file":
        return PipelineSplit(of_text=of_text)
    if spec.split_key is None:
        return PipelineSplit(of_text=of_text, of_rows=lambda paths, rows: _names_by_row(paths, rows, spec))
    kind = columns.get(spec.split_key)
    if kind is None:
        raise ConfigError(
            f"no column {spec.split_key!r} in the data.",
            where="shards.split_key",
            advice=f"Use one of {', '.join(sorted(columns))}.",
        )
    return PipelineSplit(
        of_text=of_text,
        of_rows=lambda _paths, _rows, keys: _names_by_key(keys, spec, kind),
        key=spec.split_key,
    )


def _names_by_row(paths: Any, rows: Any, spec: ShardSpec) -> Any:
    numbers = _whole(rows).to_numpy(zero_copy_only=False).astype(np.int64)
    encoded = _whole(paths).dictionary_encode()
    places = encoded.indices.to_numpy(zero_copy_only=False)
    heldout = np.zeros(len(numbers), dtype=np.bool_)
    for place, path in enumerate(encoded.dictionary.to_pylist()):
        chosen = places == place
        heldout[chosen] = heldout_rows(_source(path), None, numbers[chosen], spec)
    return _names(heldout)


def _names_by_key(keys: Any, spec: ShardSpec, kind: str) -> Any:
    import pyarrow as pa

    from data_contracts.column_types import arrow_type

    batch = pa.record_batch({spec.split_key: _whole(keys).cast(arrow_type(kind))})
    return _names(heldout_rows(_source(""), batch, np.arange(len(keys)), spec))


def _names(heldout: Any) -> Any:
    import pyarrow as pa

    return pa.array(np.where(heldout, HELDOUT, TRAIN))


def _whole(array: Any) -> Any:
    import pyarrow as pa

    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _source(path: str) -> SourceRows:
    return SourceRows(path=path, sha256="", size_bytes=0, num_rows=0, left_out=NO_ROWS, read=lambda: iter(()))
