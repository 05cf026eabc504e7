"""Finished groups, found again by key: shard files first, then `group.json`, which says that all of them are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Self, cast

import numpy as np
import xxhash

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import Algorithm, DigestingWriter, canonical_json, file_digest, sha256_of
from headway.data_contracts.store.documents import Frozen, PayloadColumn, Sha256, Shard, ShardGroup, StoredFile
from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.places import reading
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import FileDigests
from headway.data_contracts.store.strict_json import parse_json
from headway.training.config.shards import ShardSpec
from headway.training.data.shards.bucket_shuffle import ShuffledRows
from headway.training.data.shards.parquet_payload import Bytes2D, width_bytes, write_shard

ROW_GROUP_BYTES = 16 << 20
MAX_CLASSES_COUNTED = 1024
LABEL = "label"


class GroupPart(Frozen):
    """A group's part of one split, as it stands in the manifest."""

    content_sha256: Sha256
    """Over the XXH3-128 of each shard's payload alone. It tells equal from other, not friend from foe: that is what
    the files' own SHA-256 are for, and hashing everything twice as slowly would show in what sharding costs."""
    group: ShardGroup


class GroupRecord(Frozen):
    """All that was written for a group."""

    format_version: int = 2
    key: Sha256
    parts: tuple[GroupPart, ...]


class ShardLayout:
    """How rows are cut into shards and row groups: by the spec and the rows' width alone."""

    def __init__(self, spec: ShardSpec, columns: Sequence[PayloadColumn], num_classes: int) -> None:
        self.columns, self.codec, self.num_classes = columns, spec.codec, num_classes
        self.row_bytes = sum(width_bytes(column) for column in columns)
        # By bytes and by rows, whichever comes first; at least one row, however wide.
        self.rows_per_shard = max(1, min(spec.rows_per_shard, spec.shard_mb * 10**6 // self.row_bytes))
        self.rows_per_row_group = max(1, min(spec.rows_per_row_group, ROW_GROUP_BYTES // self.row_bytes))

    @property
    def shard_bytes(self) -> int:
        return self.rows_per_shard * self.row_bytes

    def bounds(self, num_rows: int) -> list[tuple[int, int]]:
        """First and last row of each shard; their sizes differ by at most one row."""
        # Rounded up, and cut evenly: the last shard is as large as the others.
        num_shards = -(-num_rows // self.rows_per_shard)
        edges = [number * num_rows // max(1, num_shards) for number in range(num_shards + 1)]
        return list(pairwise(edges))


def record_path(key: str) -> str:
    return f"shards/{key}/group.json"


class UncachedDigests:
    """Digests that are remembered nowhere: every look reads the whole file."""

    def digest(self, path: Path, algorithm: Algorithm = "sha256") -> tuple[str, int]:
        return file_digest(path, algorithm), path.stat().st_size

    def lookup_remote(self, uri: str, size_bytes: int, etag: str, algorithm: Algorithm = "sha256") -> str | None:
        return None

    def remember_remote(
        self, uri: str, size_bytes: int, etag: str, digest: str, algorithm: Algorithm = "sha256"
    ) -> None: ...


def find_group(workspace: Workspace, key: str, digests: FileDigests) -> GroupRecord | None:
    """The record under this key when it and all its files are intact; None means: encode the group (again).

    Args:
        digests: tells the digest of a local file that is known to be unchanged without reading it.

    Raises:
        EnvironmentProblem: storage refuses or does not answer. Whether the group is there is unknown then, and encoding
            it again would cost much and end at the same storage.
    """
    where = record_path(key)
    try:
        with reading(where):
            value = parse_json(workspace.read(where))
            # A record that was written half or altered is the same as none: the group is made again.
            if value["sha256"] != sha256_of(value["record"]):
                return None
            record = GroupRecord.model_validate(value["record"])
            for part in record.parts:
                for file in part.group.files:
                    # The files as well: a shard may have been deleted, or damaged, since.
                    stages.check_file(workspace, file, digests)
    except (IntegrityError, DataError, ValueError, KeyError, TypeError, FileNotFoundError, NotADirectoryError):
        return None
    # A group that was cleaned away meanwhile is encoded again.
    return record if record.key == key and workspace.renew(where) else None


def store_group(workspace: Workspace, key: str, parts: Iterable[GroupPart]) -> GroupRecord:
    """Write the record, last of all."""
    record = GroupRecord(key=key, parts=tuple(parts))
    value = record.model_dump(mode="json")
    # Last of all: a group without its record does not exist.
    workspace.publish(record_path(key), canonical_json({"record": value, "sha256": sha256_of(value)}))
    return record


class PartBuilder:
    """One split's rows on their way into shards, each of them a job for the pool; leaving the body withdraws the rest.

    Args:
        group: as it will be recorded, but without shards and rows.
        first_shard: number of the first shard; the group's splits share a folder.
    """

    def __init__(
        self,
        workspace: Workspace,
        layout: ShardLayout,
        key: str,
        group: ShardGroup,
        rows: ShuffledRows,
        pool: Executor,
        first_shard: int = 0,
    ) -> None:
        self._workspace, self._layout, self._group, self._rows = workspace, layout, group, rows
        bounds = layout.bounds(rows.num_rows)
        self.num_shards = len(bounds)
        # Submitted at once: several shards are written while others are still shuffled.
        self._jobs = [
            pool.submit(self._write, f"shards/{key}/{number:05d}.parquet", first, last)
            for number, (first, last) in enumerate(bounds, first_shard)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            # Only those not started; a shard that is being written ends by itself.
            job.cancel()

    def result(self) -> GroupPart:
        """The part, when all its shards are published.

        Raises:
            EnvironmentProblem: no space left, or permission lost; the group does not count as written.
        """
        written = [job.result() for job in self._jobs]
        shards = tuple(shard for shard, _ in written)
        whole = self._group.model_copy(update={"num_rows": self._rows.num_rows, "shards": shards})
        return GroupPart(content_sha256=sha256_of([content for _, content in written]), group=whole)

    def _write(self, relative: str, first: int, last: int) -> tuple[Shard, str]:
        layout, part, content = self._layout, self._rows.part(first, last), xxhash.xxh3_128()
        does_count = 0 < layout.num_classes <= MAX_CLASSES_COUNTED
        labels = np.zeros(layout.num_classes, dtype=np.int64)

        def gather(start: int, stop: int) -> dict[str, Bytes2D]:
            payloads = part.gather(start, stop)
            for column in layout.columns:
                # Over the payload alone: two libraries that compress differently hold equal content.
                content.update(payloads[column.name].data)
            if does_count:
                labels[:] += np.bincount(payloads[LABEL].view("<i4")[:, 0], minlength=layout.num_classes)
            return payloads

        with published(self._workspace, relative) as writer:
            row_groups = write_shard(
                writer, layout.columns, gather, last - first, layout.rows_per_row_group, layout.codec
            )
        shard = Shard(
            file=StoredFile(path=relative, size_bytes=writer.size_bytes, sha256=writer.sha256),
            num_rows=last - first,
            row_groups=row_groups,
            codec=layout.codec,
            label_counts=tuple(labels.tolist()) if does_count else (),
        )
        return shard, content.hexdigest()


@contextlib.contextmanager
def published(workspace: Workspace, relative: str) -> Iterator[DigestingWriter]:
    """A writer whose file appears whole when the body ends well, and not at all otherwise."""
    # Unbuffered: the digesting writer is given whole pages, and a buffer would copy each.
    with workspace.staged(relative) as staging, staging.open("wb", buffering=0) as stream:
        yield DigestingWriter(cast(BinaryIO, stream))


def content_digest(columns: Sequence[PayloadColumn], parts: Sequence[GroupPart]) -> str:
    """Digest over columns and payload in (group, split, shard, row group, column) order, whatever wrote the files."""
    return sha256_of(
        {
            "columns": [column.model_dump(mode="json") for column in columns],
            "groups": [
                [part.group.group, part.group.split, part.group.num_rows, part.content_sha256] for part in parts
            ],
        }
    )
