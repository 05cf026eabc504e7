"""Groups as tasks of a flow run, on a real (in-process) server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar, NamedTuple
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.runtime import flow_run

from headway.data_contracts.sources.reading import SourceSpec, take_snapshot
from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import ContractReceipt
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.stages import shard_group
from headway.tasks.stages.shard import shard
from headway.training.config.shards import BytePairSpec, ShardSpec
from headway.training.data.shards.group_store import GroupRecord
from headway.training.data.shards.group_writer import GroupWriter
from headway.training.data.shards.splits import GroupTask
from headway.training.observe.ledger import Ledger
from tests.waiting import DEADLINE_S, wait_until

SPEC = ShardSpec(encoder=BytePairSpec(vocab_size=300, sequence_tokens=16), num_groups=2, heldout_fraction=0.3)


class Sharded(NamedTuple):
    flow_run: UUID
    manifest: str
    files: dict[str, str]
    """Digests by path."""


def sharded(root: Path, spec: ShardSpec) -> Sharded:
    (root / "texts").mkdir(parents=True)
    for number in range(30):
        (root / "texts" / f"{number}.txt").write_text(f"text {number} of several texts\n" * 5)
    workspace, source = Workspace.create(str(root / "workspace")), SourceSpec(uri="texts", include=("**/*.txt",))
    context = RunContext(
        pipeline="tiny",
        workspace=workspace,
        base=root,
        ledger=Ledger(root / "ledger"),
        digests=DigestCache(root / "digests"),
        scratch=root,
        budget_scope="one",
    )
    snapshot = take_snapshot(source, base=root, cache=context.digests)
    receipt = ContractReceipt(
        contract=workspace.publish("frozen/contract", b""),
        contract_name="tiny",
        contract_version="1",
        snapshot=workspace.publish_document(snapshot),
        passed=True,
        num_rows=snapshot.num_rows,
        num_quarantined=0,
        quarantine=None,
        verdicts=(),
        metrics={},
    )
    link = workspace.publish_document(receipt)

    @flow(name="sharing")
    def sharing() -> tuple[str, str]:
        return flow_run.id, shard(context, spec, source, snapshot.link, link).sha256

    ran, manifest = sharing()
    found = sorted((root / "workspace" / "shards").rglob("*.*"))
    return Sharded(UUID(ran), manifest, {path.relative_to(root).as_posix(): sha256_file(path) for path in found})


def test_groups_shared_out_as_tasks_are_the_same_bytes(tmp_path: Path, prefect_here: None) -> None:
    alone = sharded(tmp_path / "alone", SPEC)
    shared = sharded(tmp_path / "shared", SPEC.model_copy(update={"group_tasks": True}))
    of_it = FlowRunFilter(id=FlowRunFilterId(any_=[shared.flow_run]))
    with get_client(sync_client=True) as client:

        def known() -> list[str]:
            runs = client.read_task_runs(flow_run_filter=of_it)
            return [run.name for run in runs if run.name.startswith("shard group")]

        # What a server knows of task runs, it learns from events, a little later.
        wait_until(lambda: len(known()) >= 4)
        names = known()
    assert shared[1:] == alone[1:]
    assert len(alone.files) > 4
    assert sorted(names) == [f"shard group {group} ('{split}',)" for group in (0, 1) for split in ("heldout", "train")]


class Watched(GroupWriter):
    """The first waits for a second one to be at work; what all at work may hold is added up."""

    lock, two = threading.Lock(), threading.Barrier(2, timeout=DEADLINE_S)
    memory_mb: ClassVar[list[int]] = []
    held_mb: ClassVar[list[int]] = []

    def write(self, task: GroupTask) -> GroupRecord:
        with self.lock:
            self.memory_mb.append(self._spec.memory_mb)
            self.held_mb.append(sum(self.memory_mb))
            is_early = len(self.held_mb) <= 2
        try:
            if is_early:
                self.two.wait()
            return super().write(task)
        finally:
            with self.lock:
                self.memory_mb.remove(self._spec.memory_mb)


def test_tasks_at_work_at_once_share_the_memory_bound(
    tmp_path: Path, prefect_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_group, "num_cores", lambda: 2, raising=False)
    monkeypatch.setattr(shard_group, "GroupWriter", Watched)
    spec = SPEC.model_copy(update={"group_tasks": True, "num_groups": 6, "memory_mb": 100, "shard_mb": 1})
    sharded(tmp_path / "shared", spec)
    assert len(Watched.held_mb) > 4
    assert max(Watched.held_mb) == spec.memory_mb
