"""One shard group as a Prefect task of its own, in values that can be sent anywhere.

Whatever runs the flow's tasks may share the groups out: threads, Dask or Ray by the flow's task runner, or processes
that `serve(shard_group)` and are given work by `shard_group.delay(...)`. Nobody needs to agree on who does what: a
group that is there already is found, and one that two workers make is the same bytes twice.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import FittedState, Frozen, Link
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.retry_policy import is_transient
from headway.tasks.rows.source_rows import source_rows
from headway.training.config.shards import MIN_MEMORY_MB, ShardSpec
from headway.training.data.encode.encoders import load_encoder
from headway.training.data.shards.group_store import ShardLayout
from headway.training.data.shards.group_writer import SHARD_COPIES, GroupWriter, shards_at_once
from headway.training.data.shards.sharding import num_cores
from headway.training.data.shards.splits import plan_groups


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
        DataError, EnvironmentProblem: as `headway.training.data.shards.sharding.write_shards`.
    """
    # Not the flow's own: the task may run in a process, or on a host, that shares nothing but the store.
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
    """Have every group written by tasks of the flow run at hand, and wait for them.

    Only as many are submitted at a time as the memory bound is shared among: Prefect's own threads have no bound.

    Raises:
        ConfigError: the memory bound cannot hold a shard.
        DataError, EnvironmentProblem: as `shard_group`; no further group is submitted.
    """
    workspace = Workspace(job.workspace)
    plan = plan_groups(source_rows(workspace, Path(job.base), job.source, job.snapshot, job.receipt), job.spec)
    at_once = tasks_at_once(job.spec, workspace.load(job.fitted, FittedState), workspace, num_cores())
    # Each task may take its share of the bound; the group's bytes do not depend on it.
    spec = job.spec.model_copy(update={"memory_mb": job.spec.memory_mb // at_once})
    job = job.model_copy(update={"spec": spec})
    running: set[PrefectFuture[str]] = set()
    # Large groups first, so that the tasks end about together.
    for each in sorted(plan, key=lambda group: group.size_bytes, reverse=True):
        if len(running) == at_once:
            running.remove(_first_done(running))
        running.add(shard_group.submit(job, each.group, each.splits))
    while running:
        running.remove(_first_done(running))


def _first_done(running: set[PrefectFuture[str]]) -> PrefectFuture[str]:
    """Raises what its task raised."""
    done = next(as_completed(list(running)))
    done.result()
    return done


def tasks_at_once(spec: ShardSpec, fitted: FittedState, workspace: Workspace, most: int) -> int:
    """How many tasks, `most` at most, may share the memory bound in whole megabytes that hold a shard each.

    Raises:
        ConfigError: not one.
    """
    encoder = load_encoder(spec.encoder, fitted, workspace)
    layout = ShardLayout(spec, encoder.columns, encoder.num_classes)
    shards_at_once(spec, layout, 1)  # refuses in words a person can act on
    least_mb = max(MIN_MEMORY_MB, math.ceil(2 * SHARD_COPIES * layout.shard_bytes / 10**6))
    return max(1, min(most, spec.memory_mb // least_mb))
