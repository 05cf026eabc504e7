"""Which key each held-out example has, kept beside the shards: rows of one key are alike, and are evaluated together.

The source may have other keys by then, or be gone. What is kept is a digest of each key and not the key: it tells which
examples belong together, within a manifest and over the folds of one table.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import PayloadColumn, ShardManifest, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.shards.bucket_shuffle import BucketShuffle
from headway.training.data.shards.group_store import published
from headway.training.data.shards.splits import key_digests

KEY = PayloadColumn(name="key", dtype="uint64", shape=(1,))
KEY_BYTES = 8
ROWS_AT_ONCE = 1 << 16
SHARE_OF_BUFFER = 1 / 8
"""Of the memory that a held-out part collects rows in. More rows are spilled, as rows of shards are."""


class HeldoutKeys:
    """The keys of a group's held-out examples, on their way beside its shards.

    Args:
        in_row_order: each example is a row of the shards; else a document, and documents stay in the order they come.
    """

    def __init__(self, spec: ShardSpec, *, in_row_order: bool, buffer_bytes: int, scratch: Path | None) -> None:
        assert spec.split_key is not None
        self._key, self._salt = spec.split_key, f"keys of {spec.split_salt}"
        # By the same ids as the rows themselves, so that both come out in one order.
        self._shuffle = BucketShuffle([KEY], buffer_bytes, scratch) if in_row_order else None
        # Eight bytes a document, whose names are many more.
        self._documents: list[NDArray[np.uint64]] = []

    def add(self, block: SourceBlock) -> None:
        """Raises `DataError` and `EnvironmentProblem`, as `key_digests` and `BucketShuffle.add`."""
        digests = key_digests(block.path, block.batch, self._key, self._salt).astype("<u8")
        if self._shuffle is None:
            self._documents.append(digests)
        else:
            self._shuffle.add(block.ids, {KEY.name: digests.view(np.uint8).reshape(-1, KEY_BYTES)})

    def store(self, workspace: Workspace, relative: str) -> StoredFile:
        """Raises `EnvironmentProblem`: no space left, or permission lost."""
        with published(workspace, relative) as writer:
            if self._shuffle is None:
                for digests in self._documents:
                    writer.write(digests.tobytes())
            else:
                rows = self._shuffle.finish()
                for first in range(0, rows.num_rows, ROWS_AT_ONCE):
                    last = min(first + ROWS_AT_ONCE, rows.num_rows)
                    writer.write(rows.part(first, last).gather(0, last - first)[KEY.name].tobytes())
        return StoredFile(path=relative, size_bytes=writer.size_bytes, sha256=writer.sha256)


def heldout_keys(workspace: Workspace, manifest: ShardManifest) -> NDArray[np.uint64] | None:
    """Of each held-out example, as rows lie in the shards; of packed ones as groups count their documents.

    None where rows are not split by key.

    Raises:
        IntegrityError: they are gone, altered or were never kept.
    """
    if manifest.spec.get("split_by") != "key":
        return None
    found = [np.zeros(0, dtype=np.uint64)]
    for group in (group for group in manifest.groups if group.split == HELDOUT and group.num_samples):
        file = group.keys
        if file is None:
            raise IntegrityError(
                "its shards do not say which key each held-out row has.",
                where=manifest.link.short,
                advice="Run `headway retrain`: shards that say it are made.",
            )
        data = workspace.read(file.path, file.size_bytes)
        # Read once and checked: what is hashed is what is used.
        if sha256_bytes(data) != file.sha256 or len(data) != KEY_BYTES * group.num_samples:
            raise IntegrityError(
                "its bytes differ from the digest in the shard manifest.",
                where=file.path,
                advice="Run `headway retrain`: its group is made again.",
            )
        found.append(np.frombuffer(data, dtype="<u8"))
    return np.concatenate(found)
