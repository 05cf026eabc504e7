"""Whether a table has rows to train on, rows held out and classes to tell apart: asked before anything is spent, in
the words in which sharding would refuse it later."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headway.data_contracts.scans.leakage import PipelineSplit
from headway.data_contracts.sources.reading import SourceSpec, read_rows
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.rows.label_classes import MAX_ROWS
from headway.tasks.rows.pipeline_split import pipeline_split
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.config.shards import SPLITS, TRAIN, ShardSpec
from headway.training.data.encode.source_columns import plain
from headway.training.data.encode.tabular import too_few_classes
from headway.training.data.shards.skew import without_rows


def require_enough_rows(
    shards: ShardSpec, source: SourceSpec, taken: Snapshot, *, base: Path, digests: DigestCache | None = None
) -> None:
    """Refuse what sharding surely refuses: rows that the contract would leave out are counted as well.

    Nothing is said of more than `MAX_ROWS` rows, which are hardly ever too few.

    Raises:
        DataError: fewer than two classes in the training split, or a split without rows.
    """
    encoder = shards.encoder
    if not isinstance(encoder, TabularEncoderSpec) or taken.num_rows > MAX_ROWS:
        return
    split = pipeline_split(shards, taken.columns)
    label = encoder.label if encoder.predicts_class and encoder.label in taken.columns else None
    num_rows: Counter[str] = Counter()
    classes: set[Any] = set()
    for file in taken.files:
        first_row = 0
        for batch in read_rows(source, file, base=base, columns=taken.columns, digests=digests):
            try:
                names = _splits_of(split, file.path, first_row, batch)
            except DataError:
                return  # of a row that the contract may leave out
            num_rows.update(name for name in names.to_pylist() if name is not None)
            if label is not None:
                trained = plain(batch.column(label)).filter(pc.equal(names, TRAIN))
                classes |= set(trained.drop_null().unique().to_pylist())
            first_row += batch.num_rows
    empty = [name for name in SPLITS if not num_rows[name]]
    if empty and split.of_rows is None:
        return  # sharding has other words for files
    if label is not None and len(classes) < 2:
        raise too_few_classes(label, len(classes))
    if empty:
        raise without_rows(empty[0])


def _splits_of(split: PipelineSplit, path: str, first_row: int, batch: pa.RecordBatch) -> pa.Array:
    """The name of each row's split; null where it is in none."""
    if split.of_rows is None:
        return pa.array([split.of_text(path)] * batch.num_rows, pa.string())
    rows = pa.array(np.arange(first_row, first_row + batch.num_rows))
    paths = pa.array([path] * batch.num_rows, pa.string())
    if split.key is None:
        return split.of_rows(paths, rows)
    keys = batch.column(split.key)
    known = pc.is_valid(keys)  # without its key a row is left out, or refused
    names = split.of_rows(paths.filter(known), rows.filter(known), keys.filter(known))
    is_known = known.to_numpy(zero_copy_only=False)
    return names.take(pa.array(np.cumsum(is_known) - 1, mask=~is_known))
