"""Stage *shard*: files to fitted state, and files with fitted state to Parquet shards in groups.

Both are pure functions of the files' bytes and the spec: no clock, listing order, thread or earlier run shows in
the bytes. A group whose inputs are unchanged is found again by its key instead of written again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from data_contracts.digests import sha256_bytes, sha256_of, source_digest
from data_contracts.documents import FittedState, Link, ShardGroup, ShardManifest, StoredFile
from data_contracts.errors import DataError
from data_contracts.publication import Workspace
from training.data.encoders import LIBRARIES, Encoder, fit_encoder, load_encoder
from training.data.group_store import GroupRecord, content_digest, find_group, store_group
from training.data.spec import TRAIN, ShardSpec
from training.data.splitmix import hash_text, mix, shuffled
from training.data.splits import SourceDocument, grouped

__all__ = ["SourceDocument", "fit", "write_shards"]

CODE = ("byte_pair", "encoders", "group_store", "packing", "parquet_payload", "sharding", "splitmix", "splits")
"""Modules of this folder that decide bytes: their source is part of a group's key."""

OnGroup = Callable[[ShardGroup], None]


def fit(
    spec: ShardSpec, documents: Iterable[SourceDocument], workspace: Workspace, *, snapshot: Link, receipt: Link
) -> FittedState:
    """Fit the encoder on the training split and publish its files.

    Raises:
        DataError: a split stays empty, or a file is gone or changed since the snapshot.
    """
    members = (member for (_, split), group in grouped(documents, spec).items() if split == TRAIN for member in group)
    files = fit_encoder(spec.encoder, (read_document(member) for member in members))
    digest = sha256_of({name: sha256_bytes(data) for name, data in files.items()})
    return FittedState(
        encoder=spec.encoder.kind,
        spec=spec.encoder.model_dump(mode="json"),
        snapshot=snapshot,
        receipt=receipt,
        files=tuple(workspace.publish(f"fitted/{digest}/{name}", files[name]) for name in sorted(files)),
        libraries={name: version(name) for name in LIBRARIES},
    )


def write_shards(
    spec: ShardSpec,
    fitted: FittedState,
    documents: Iterable[SourceDocument],
    workspace: Workspace,
    *,
    snapshot: Link,
    receipt: Link,
    on_group: OnGroup | None = None,
    num_threads: int | None = None,
) -> ShardManifest:
    """Encode, shuffle and write every group that is not there yet; the caller publishes the manifest.

    Args:
        on_group: called in the caller's thread with each group, in manifest order.
        num_threads: groups at work at once; by default one a core. Memory grows with it, bytes do not change.

    Raises:
        DataError: a file is gone or changed since the snapshot.
        EnvironmentProblem: no space left; finished groups are kept and found by the next try.
    """
    encoder = load_encoder(spec.encoder, fitted, workspace)
    make = _GroupMaker(spec, fitted, encoder, workspace)
    groups = grouped(documents, spec)
    records = []
    with ThreadPoolExecutor(num_threads or len(os.sched_getaffinity(0)), "shard") as pool:
        for record in pool.map(make, groups.keys(), groups.values()):
            records.append(record)
            if on_group:
                on_group(record.group)
    return ShardManifest(
        snapshot=snapshot,
        receipt=receipt,
        fitted=fitted.link,
        spec=spec.model_dump(mode="json"),
        columns=encoder.columns,
        groups=tuple(record.group for record in records),
        content_sha256=content_digest(encoder.columns, records),
        libraries=make.libraries,
    )


def read_document(document: SourceDocument) -> bytes:
    """The bytes the snapshot names, or `DataError`."""
    try:
        data = document.read()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}).", where=document.path) from error
    if sha256_bytes(data) != document.sha256:
        raise DataError(
            "the file changed after the snapshot was taken.",
            where=document.path,
            advice="Run again: the new snapshot will hold the new bytes.",
        )
    return data


def row_seed(spec: ShardSpec, group: int, split: str) -> int:
    """Seed of the row order inside a group: row i of the packed group is written at `shuffled(...)`'s place of i."""
    return mix(spec.seed, hash_text("rows", split), group)


class _GroupMaker:
    """Makes or finds one group; called from several threads."""

    def __init__(self, spec: ShardSpec, fitted: FittedState, encoder: Encoder, workspace: Workspace) -> None:
        self._spec, self._encoder, self._workspace = spec, encoder, workspace
        self.libraries = {name: version(name) for name in sorted((*LIBRARIES, "pyarrow"))}
        self._common = {
            "spec": spec.model_dump(mode="json"),
            # Not the link: a state fitted again to the same files makes the same rows.
            "fitted": _names_and_digests(fitted.files),
            "libraries": self.libraries,
            "code": source_digest({name: Path(__file__).parent / f"{name}.py" for name in CODE}),
        }

    def __call__(self, name: tuple[int, str], members: Sequence[SourceDocument]) -> GroupRecord:
        key = sha256_of({**self._common, "group": name, "files": [[member.path, member.sha256] for member in members]})
        return find_group(self._workspace, key) or self._write(key, name, members)

    def _write(self, key: str, name: tuple[int, str], members: Sequence[SourceDocument]) -> GroupRecord:
        packed = self._encoder.encode(_contents(members))
        num_rows = len(packed[self._encoder.columns[0].name])
        order = shuffled(num_rows, row_seed(self._spec, *name))
        group = ShardGroup(
            group=name[0],
            split=name[1],
            num_rows=num_rows,
            num_samples=len(members),
            documents=tuple(member.path for member in members),
            shards=(),
        )
        values = {column: rows[order] for column, rows in packed.items()}
        return store_group(self._workspace, self._spec, key, group, self._encoder.columns, values)


def _contents(members: Sequence[SourceDocument]) -> Iterator[bytes]:
    return (read_document(member) for member in members)


def _names_and_digests(files: Sequence[StoredFile]) -> list[list[str]]:
    return [[file.path.rpartition("/")[2], file.sha256] for file in files]
