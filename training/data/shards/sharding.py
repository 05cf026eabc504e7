"""Stage *shard*: rows to fitted state, and rows with fitted state to Parquet shards in groups.

Both are pure functions of the files' bytes and the spec: no clock, listing order, thread, memory bound or earlier run
shows in the bytes. A group whose inputs are unchanged is found again by its key instead of written again, so that the
processes that share the work need nothing but the workspace.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import FittedState, Link, ShardGroup, ShardManifest
from headway.data_contracts.store.errors import DataError, EncodingRefused
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import FileDigests
from headway.training.config.shards import TRAIN, ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.data_shape import classes_of
from headway.training.data.encode.encoders import fit_encoder, libraries
from headway.training.data.shards.group_store import GroupPart, content_digest
from headway.training.data.shards.group_writer import GroupWriter
from headway.training.data.shards.row_blocks import training_blocks
from headway.training.data.shards.skew import check_skew
from headway.training.data.shards.splits import SourceRows, plan_groups

OnGroup = Callable[[ShardGroup], None]


def fit(
    spec: ShardSpec,
    sources: Iterable[SourceRows],
    workspace: Workspace,
    *,
    snapshot: Link,
    receipt: Link,
    num_threads: int | None = None,
    code: bytes | None = None,
) -> FittedState:
    """Fit the encoder on the training split and publish its files.

    Args:
        code: of an encoder of the user's own, the archive that it is imported from; it becomes one of the files.

    Raises:
        DataError: a split stays empty, or a file is gone or changed since the snapshot.
        EncodingRefused: a row, or a column of them, is none that the encoder can be fitted to.
        ConfigError: an encoder of the user's own is wrong.
    """
    unread: list[DataError] = []
    tasks = [task for task in plan_groups(sources, spec) if TRAIN in task.splits]
    groups = [_noting_unread(training_blocks(task, spec), unread) for task in tasks]
    try:
        fitted = fit_encoder(spec.encoder, groups, num_threads or num_cores(), code)
    except DataError as error:
        if unread:
            raise
        # A class of its own: another encoder may take the same rows, and a file that is gone has none to take.
        raise EncodingRefused(error.what, where=error.where, advice=error.advice) from error
    # By content: the same files fitted from other data are stored once.
    digest = sha256_of({name: sha256_bytes(data) for name, data in fitted.files.items()})
    return FittedState(
        encoder=spec.encoder.kind,
        spec=spec.encoder.model_dump(mode="json"),
        snapshot=snapshot,
        receipt=receipt,
        files=tuple(workspace.publish(f"fitted/{digest}/{name}", data) for name, data in sorted(fitted.files.items())),
        libraries=libraries(spec.encoder),
        statistics=fitted.statistics,
    )


def _noting_unread(blocks: Iterator[SourceBlock], unread: list[DataError]) -> Iterator[SourceBlock]:
    try:
        yield from blocks
    except DataError as error:
        unread.append(error)
        raise


def write_shards(
    spec: ShardSpec,
    fitted: FittedState,
    sources: Iterable[SourceRows],
    workspace: Workspace,
    *,
    snapshot: Link,
    receipt: Link,
    scratch: Path | None = None,
    digests: FileDigests | None = None,
    on_group: OnGroup | None = None,
    num_threads: int | None = None,
) -> ShardManifest:
    """Encode, shuffle and write every group that is not there yet; the caller publishes the manifest.

    Args:
        scratch: a local folder for rows beyond the memory bound; the system's by default.
        digests: remembered digests, so that shards known to be unchanged are not read.
        on_group: called in the caller's thread with each group and split, in manifest order.
        num_threads: groups at work at once; by default one a core. No bit depends on it.

    Raises:
        DataError: a file is gone or changed since the snapshot, a row is refused, or groups are too uneven.
        ConfigError: the memory bound cannot hold a shard, or labels that shards do not count are to be judged.
        EnvironmentProblem: no space left; finished groups are kept and found by the next try.
    """
    tasks = plan_groups(sources, spec)
    num_threads = num_threads or num_cores()
    parts: list[GroupPart] = []
    with GroupWriter(spec, fitted, workspace, scratch, digests=digests, num_threads=num_threads) as writer:
        with ThreadPoolExecutor(num_threads, "shard") as pool:
            # Large groups first, so that the threads end about together.
            places = sorted(range(len(tasks)), key=lambda place: tasks[place].size_bytes, reverse=True)
            jobs = {place: pool.submit(writer.write, tasks[place]) for place in places}
            try:
                # In manifest order, whichever group is done first.
                for place in range(len(tasks)):
                    for part in jobs[place].result().parts:
                        parts.append(part)
                        if on_group:
                            on_group(part.group)
            finally:
                # After an error nothing more is begun; finished groups stay, and the next run finds them.
                for job in jobs.values():
                    job.cancel()
        columns = writer.columns
    # After all are written: the gate looks at the whole, and finished groups are kept for the next try.
    classes = classes_of(spec.encoder, fitted.statistics)
    check_skew([part.group for part in parts], spec.skew, classes, splits=spec.splits, fold=spec.fold)
    return ShardManifest(
        snapshot=snapshot,
        receipt=receipt,
        fitted=fitted.link,
        spec=spec.identity,
        columns=columns,
        groups=tuple(part.group for part in parts),
        content_sha256=content_digest(columns, parts),
        libraries=libraries(spec.encoder),
    )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
