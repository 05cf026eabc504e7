"""One shard group as a Prefect task of its own, in values that can be sent anywhere.

Whatever runs the flow's tasks may share the groups out: threads, Dask or Ray by the flow's task runner, or processes
that `serve(shard_group)` and are given work by `shard_group.delay(...)`. Nobody needs to agree on who does what: a
group that is there already is found, and one that two workers make is the same bytes twice.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import unmapped

from data_contracts.digest_cache import DigestCache
from data_contracts.digests import sha256_of
from data_contracts.documents import ContractReceipt, FittedState, Frozen, Link, Snapshot, SourceFile
from data_contracts.errors import ConfigError
from data_contracts.publication import Workspace
from data_contracts.quarantine import left_out_rows
from data_contracts.sources import SourceSpec, read_rows
from tasks.code_version import code_version
from tasks.retry_policy import is_transient
from training.data.group_writer import GroupWriter
from training.data.spec import ShardSpec
from training.data.splits import NO_ROWS, SourceRows, plan_groups


class ShardJob(Frozen):
    """What to shard, by the names of documents in a workspace."""

    workspace: str
    base: str
    """Folder that the source's relative paths start from."""
    spec: ShardSpec
    source: SourceSpec
    snapshot: Link
    receipt: Link
    fitted: Link


@task(
    name="shard group",
    task_run_name="shard group {group} {splits}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=2,
    retry_delay_seconds=[1, 5],
    retry_condition_fn=is_transient,
)
def shard_group(job: ShardJob, group: int, splits: tuple[str, ...]) -> str:
    """Write one group, unless it is there; returns the key under which it is found.

    Raises:
        ConfigError: the plan has no such group.
        DataError, EnvironmentProblem: as `training.data.sharding.write_shards`.
    """
    workspace = Workspace(job.workspace)
    sources = source_rows(workspace, Path(job.base), job.source, job.snapshot, job.receipt)
    found = [each for each in plan_groups(sources, job.spec) if (each.group, each.splits) == (group, tuple(splits))]
    if not found:
        raise ConfigError(f"there is no group {group} of {', '.join(splits)}.", where=job.snapshot.short)
    fitted = workspace.load(job.fitted, FittedState)
    with (
        tempfile.TemporaryDirectory(prefix="headway-shard-") as scratch,
        GroupWriter(job.spec, fitted, workspace, Path(scratch)) as writer,
    ):
        return writer.write(found[0]).key


def share_out(job: ShardJob) -> None:
    """Have every group written by tasks of the flow run at hand, and wait for them."""
    workspace = Workspace(job.workspace)
    plan = plan_groups(source_rows(workspace, Path(job.base), job.source, job.snapshot, job.receipt), job.spec)
    futures = shard_group.map(unmapped(job), [each.group for each in plan], [each.splits for each in plan])
    futures.result()


def source_rows(
    workspace: Workspace,
    base: Path,
    source: SourceSpec,
    snapshot: Link,
    receipt: Link,
    digests: DigestCache | None = None,
) -> list[SourceRows]:
    """The rows of the snapshot's files; reading a file checks it against the snapshot."""
    taken = workspace.load(snapshot, Snapshot)
    left_out = left_out_rows(workspace, workspace.load(receipt, ContractReceipt))
    reading = sha256_of([taken.format, taken.options, taken.columns, code_version(read_rows.__module__)])

    def rows_of(file: SourceFile) -> SourceRows:
        return SourceRows(
            path=file.path,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            num_rows=file.num_rows,
            left_out=left_out.get(file.path, NO_ROWS),
            read=partial(read_rows, source, file, base=base, columns=taken.columns, digests=digests),
            reading=reading,
        )

    return [rows_of(file) for file in taken.files]
