"""Rows of today that an earlier model was trained on, though they are held out: they changed places in their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION
from headway.training.data.load.shard_reader import ShardReader

DIGEST_BYTES = 16
ROWS_AT_ONCE = 4096


def rows_seen(workspace: Workspace, earlier: ShardManifest, today: ShardManifest) -> NDArray[np.bool_]:
    """Which of the rows that are held out today a model of earlier shards has an advantage on, in their order.

    By what the rows hold, whatever their places: a deleted row moves all rows below it to other folds. A row that has
    an equal among those that train today is none of these, since then both models know it.

    Args:
        earlier, today: encoded alike.

    Raises:
        IntegrityError, FileNotFoundError: a shard is gone or altered.
    """
    learnt = {*_digests(workspace, earlier, (TRAIN, VALIDATION))}
    learnt -= {*_digests(workspace, today, (TRAIN, VALIDATION))}
    return np.array([digest in learnt for digest in _digests(workspace, today, (HELDOUT,))], dtype=np.bool_)


def _digests(workspace: Workspace, shards: ShardManifest, splits: Sequence[str]) -> Iterator[bytes]:
    there = {group.split for group in shards.groups}
    for split in (split for split in splits if split in there):
        reader = ShardReader(workspace, shards, split)
        for start in range(0, reader.num_rows, ROWS_AT_ONCE):
            numbers = np.arange(start, min(start + ROWS_AT_ONCE, reader.num_rows))
            columns = sorted(reader.gather(numbers).items())
            flat = [
                np.ascontiguousarray(values).reshape(len(numbers), -1).view(np.uint8).reshape(len(numbers), -1)
                for _, values in columns
            ]
            for row in np.concatenate(flat, axis=1):
                yield hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest()
