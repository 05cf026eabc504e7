"""One group from source rows to published shards: encode, shuffle, write; or find what is there already."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.data_contracts.store.digests import sha256_bytes, sha256_of, source_digest
from headway.data_contracts.store.documents import FittedState, ShardGroup, StoredFile
from headway.data_contracts.store.errors import ConfigError, DataError, EncodingRefused
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import FileDigests
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.encode.blocks import EncodedBlock, SourceBlock
from headway.training.data.encode.encoders import SOURCES, libraries, load_encoder
from headway.training.data.encode.protocol import Encoder, EncoderStream, ExternalResource, RowByRow
from headway.training.data.shards.bucket_shuffle import BucketShuffle
from headway.training.data.shards.group_store import (
    GroupRecord,
    PartBuilder,
    ShardLayout,
    UncachedDigests,
    find_group,
    store_group,
)
from headway.training.data.shards.heldout_keys import SHARE_OF_BUFFER, HeldoutKeys
from headway.training.data.shards.parquet_payload import payload_of
from headway.training.data.shards.row_blocks import blocks_of
from headway.training.data.shards.skew import refuse_unjudgeable
from headway.training.data.shards.splits import GroupTask
from headway.training.data.splitmix import hash_text, mix

CODE = (
    *("shards/bucket_shuffle", "shards/group_store", "shards/group_writer", "shards/heldout_keys"),
    *("shards/parquet_payload", "shards/row_blocks", "shards/splits", "shards/thrift_compact", "splitmix"),
    *("encode/blocks", "encode/encoders", "encode/source_columns"),
)
"""Modules of `training/data` that decide bytes whatever the encoder: their source is part of a group's key."""
SHARD_COPIES = 1.5
"""Memory that writing a shard takes, in its own size: its rows, and a row group."""


class GroupWriter:
    """Makes or finds groups, one at a time or from several threads.

    Args:
        num_threads: threads that call `write`; the memory bound is shared among them.
    """

    def __init__(
        self,
        spec: ShardSpec,
        fitted: FittedState,
        workspace: Workspace,
        scratch: Path | None = None,
        *,
        digests: FileDigests | None = None,
        num_threads: int = 1,
    ) -> None:
        self._spec, self._workspace, self._scratch = spec, workspace, scratch
        self._digests = digests or UncachedDigests()
        self._encoder = load_encoder(spec.encoder, fitted, workspace)
        # Before anything is encoded: a limit on labels that are not counted could never refuse.
        refuse_unjudgeable(spec.skew, self._encoder.num_classes)
        self.columns = self._encoder.columns
        self._layout = ShardLayout(spec, self.columns, self._encoder.num_classes)
        # Half of the memory collects rows, half writes shards.
        self._buffer_bytes = spec.memory_mb * 10**6 // 2 // num_threads
        self._pool = ThreadPoolExecutor(shards_at_once(spec, self._layout, num_threads), "shard-file")
        self._common = {
            "spec": spec.group_identity,
            # Not the link: a state fitted again to the same files makes the same rows.
            "fitted": [_names_and_digests(fitted.files), fitted.statistics],
            "libraries": libraries(spec.encoder),
            "code": code_digest(spec),
        }

    def __enter__(self) -> GroupWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if isinstance(self._encoder, ExternalResource):
            self._encoder.close()

    def write(self, task: GroupTask) -> GroupRecord:
        """The group's record, found or made.

        Raises:
            EncodingRefused: a row is other than the encoder was fitted for.
            DataError, EnvironmentProblem: as `write_shards`.
        """
        key = self.key(task)
        return find_group(self._workspace, key, self._digests) or self._write(key, task)

    def key(self, task: GroupTask) -> str:
        """Digest of all that decides the group's shards."""
        # Quarantined rows are part of the key, by digest: another list of them makes other shards.
        files = [
            [member.path, member.sha256, member.reading, sha256_bytes(member.excluded.tobytes())]
            for member in task.members
        ]
        return sha256_of({**self._common, "group": [task.group, task.name, task.splits], "files": files})

    def _write(self, key: str, task: GroupTask) -> GroupRecord:
        parts = {split: self._part(task, split) for split in task.splits}
        # In the members' order, which is part of packing.
        for place, member in enumerate(task.members):
            for split, block in blocks_of(member, task, self._spec):
                parts[split].push(place, block)
        with contextlib.ExitStack() as jobs:
            stored: list[PartBuilder] = []
            for part in parts.values():
                # The splits of a group share a folder, so the second continues the numbers of the first.
                first_shard = sum(each.num_shards for each in stored)
                stored.append(jobs.enter_context(self._stored(key, task, part, first_shard)))
            return store_group(self._workspace, key, [each.result() for each in stored])

    def _part(self, task: GroupTask, split: str) -> _Part:
        # The memory is shared out as rows will be, so that all splits spill about equally.
        share = 1.0 if len(task.splits) == 1 else self._spec.share_of(split)
        buffer_bytes = int(self._buffer_bytes * share)
        stream = self._encoder.stream(row_seed(self._spec, task.group, split))
        keys = None
        if split == HELDOUT and self._spec.split_key is not None:
            keys_bytes = int(buffer_bytes * SHARE_OF_BUFFER)
            buffer_bytes -= keys_bytes
            # Other encoders pack: rows of theirs are pieces of documents, which are the examples.
            in_row_order = isinstance(stream, RowByRow)
            keys = HeldoutKeys(self._spec, in_row_order=in_row_order, buffer_bytes=keys_bytes, scratch=self._scratch)
        shuffle = BucketShuffle(self.columns, buffer_bytes, self._scratch)
        return _Part(split, self._encoder, stream, shuffle, len(task.members), keys)

    def _stored(self, key: str, task: GroupTask, part: _Part, first_shard: int) -> PartBuilder:
        part.finish()
        keys = None
        if part.keys is not None and any(part.num_samples):
            keys = part.keys.store(self._workspace, f"shards/{key}/{part.split}.keys")
        group = ShardGroup(
            group=task.group,
            name=task.name,
            split=part.split,
            num_rows=0,
            num_samples=sum(part.num_samples),
            documents=tuple(member.path for member in task.members),
            samples_by_document=tuple(part.num_samples),
            shards=(),
            keys=keys,
        )
        rows = part.shuffle.finish()
        return PartBuilder(self._workspace, self._layout, key, group, rows, self._pool, first_shard)


class _Part:
    """One split's rows of a group on their way through the encoder into the shuffle."""

    def __init__(
        self,
        split: str,
        encoder: Encoder,
        stream: EncoderStream,
        shuffle: BucketShuffle,
        num_members: int,
        keys: HeldoutKeys | None,
    ) -> None:
        self.split, self.shuffle, self.num_samples, self.keys = split, shuffle, [0] * num_members, keys
        self._columns, self._stream = encoder.columns, stream

    def push(self, place: int, block: SourceBlock) -> None:
        self.num_samples[place] += len(block.ids)
        if self.keys is not None:
            self.keys.add(block)
        try:
            for encoded in self._stream.push(block):
                self._add(encoded)
        except DataError as error:
            # A class of its own: a row that the fitted state cannot take asks for another fit, other errors do not.
            raise EncodingRefused(error.what, where=error.where, advice=error.advice) from error

    def finish(self) -> None:
        for encoded in self._stream.finish():
            self._add(encoded)

    def _add(self, encoded: EncodedBlock) -> None:
        payloads = {column.name: payload_of(column, encoded.values[column.name]) for column in self._columns}
        self.shuffle.add(encoded.ids, payloads)


def row_seed(spec: ShardSpec, group: int, split: str) -> int:
    """Seed of the row order inside a group, for encoders that number rows themselves."""
    return mix(spec.seed, hash_text("rows", split), group)


def code_digest(spec: ShardSpec) -> str:
    """Digest of the source of every module that decides the bytes of a group."""
    names = {*CODE, *(f"encode/{name}" for name in SOURCES[spec.encoder.kind])}
    return source_digest({name: Path(__file__).parents[1] / f"{name}.py" for name in names})


def shards_at_once(spec: ShardSpec, layout: ShardLayout, num_threads: int) -> int:
    """How many shards may be in the making, by the memory bound.

    Raises:
        ConfigError: not one.
    """
    fit = int(spec.memory_mb * 10**6 // 2 // (SHARD_COPIES * layout.shard_bytes))
    if not fit:
        raise ConfigError(
            f"a shard of {layout.rows_per_shard:,} rows has {layout.shard_bytes / 1e6:,.0f} MB; writing it takes more "
            f"than half of memory_mb ({spec.memory_mb}).",
            where="shards",
            advice="Lower shards.shard_mb or shards.rows_per_shard, or raise shards.memory_mb.",
        )
    return min(fit, num_threads)


def _names_and_digests(files: Sequence[StoredFile]) -> list[list[str]]:
    return [[file.path.rpartition("/")[2], file.sha256] for file in files]
