"""`headway plan`: what a retrain would find and what it would run, with data, memory and time, without spending it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from data_contracts import stages
from data_contracts.digest_cache import DigestCache
from data_contracts.documents import Link, ShardManifest, Snapshot
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from data_contracts.sources import take_snapshot
from flows.pipeline_spec import PipelineSpec
from flows.preflight import check_request
from flows.request import RetrainRequest
from tasks import model_refs
from tasks.context import RunContext
from tasks.launch import describe_run, final_checkpoint, run_folder
from tasks.register import registration_inputs
from tasks.shard import known_fitted_state, shard_inputs
from tasks.stage import find_intact
from tasks.validate import validate_inputs
from tasks.verify import verify_inputs
from training.config import batch_line
from training.ledger import Event, Ledger

STAGES = ("snapshot", "validate", "shard", "launch", "verify", "evaluate", "register")


class StagePlan(BaseModel):
    stage: str
    state: str
    """`found`, `resume` or `run`."""
    detail: str
    expected_s: float | None
    """From the last time this workspace ran the stage; None when it never did."""


class Plan(BaseModel):
    pipeline: str
    workspace: str
    num_files: int
    size_bytes: int
    stages: list[StagePlan]
    batch: str
    rank_memory_bytes: int | None
    """Weights, gradients and optimizer state of one rank, from its last checkpoint; activations come on top."""
    expected_s: float | None


def make_plan(request: RetrainRequest) -> Plan:
    """Look every key up that can be known now, reading the source but writing nothing of the pipeline's.

    Raises:
        ConfigError, DataError, EnvironmentProblem: what would refuse the retrain refuses the plan.
    """
    pipeline, path, workspace = check_request(request)
    with _looking_only(pipeline, path, workspace) as context:
        return _plan(context, pipeline)


@contextlib.contextmanager
def _looking_only(pipeline: PipelineSpec, path: Path, workspace: Workspace) -> Iterator[RunContext]:
    """A context whose ledger and scratch folder go when the plan is made."""
    with (
        tempfile.TemporaryDirectory(prefix="headway-plan-") as folder,
        contextlib.closing(Ledger(Path(folder) / "ledger.jsonl")) as ledger,
    ):
        yield RunContext(
            pipeline=pipeline.pipeline,
            workspace=workspace,
            base=path.parent,
            ledger=ledger,
            digests=DigestCache(workspace.local_path("digest-cache.json")),
            scratch=Path(folder),
            budget_scope=str(uuid.uuid4()),
        )


def _plan(context: RunContext, pipeline: PipelineSpec) -> Plan:
    workspace, damages = context.workspace, _Damages()
    context.ledger.listeners.append(damages)
    taken = take_snapshot(pipeline.source, base=context.base, cache=context.digests)
    context.digests.save()
    found = _look_up(context, pipeline, taken)
    planned = [_stage(context, name, found, damages.by_stage) for name in STAGES]
    costs = [stage.expected_s for stage in planned if stage.state != "found"]
    known = [cost for cost in costs if cost is not None]
    world_size = pipeline.launch.nodes * pipeline.launch.ranks_per_node
    return Plan(
        pipeline=pipeline.pipeline,
        workspace=workspace.uri,
        num_files=len(taken.files),
        size_bytes=taken.size_bytes,
        stages=planned,
        batch=batch_line(
            pipeline.training, world_size=world_size, context_tokens=pipeline.shards.encoder.sequence_tokens
        ),
        rank_memory_bytes=_rank_memory_bytes(context),
        expected_s=sum(known) if len(known) == len(costs) else None,
    )


class _Damages:
    """A ledger listener: what was wrong with a record that was found, by stage."""

    def __init__(self) -> None:
        self.by_stage: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if event["event"] == "stage.damaged":
            stage = "shard" if event["stage"] == "fit" else str(event["stage"])
            self.by_stage.setdefault(stage, str(event["message"]))


def _look_up(context: RunContext, pipeline: PipelineSpec, taken: Snapshot) -> dict[str, str]:
    """Stage to what is known of it, as far as each key follows from the stages before."""
    workspace = context.workspace
    found: dict[str, str] = {}
    snapshot_inputs = {"source": pipeline.source.model_dump(mode="json"), "content": taken.sha256}
    if (record := find_intact(context, "snapshot", snapshot_inputs)) is None:
        return found
    found["snapshot"] = record.document.sha256[:12]
    if (record := find_intact(context, "validate", validate_inputs(context, pipeline.contract, taken.link))) is None:
        return found
    receipt = record.document
    found["validate"] = receipt.sha256[:12]
    fitted = known_fitted_state(context, pipeline.shards)
    if fitted is None:
        return found
    record = find_intact(context, "shard", shard_inputs(pipeline.shards, taken.link, receipt, fitted))
    if record is None:
        return found
    manifest = workspace.load(record.document, ShardManifest)
    found["shard"] = f"{manifest.num_rows('train'):,} training rows"
    run = describe_run(context, pipeline.training, record.document)
    if find_intact(context, "launch", {"run": run.sha256}) is None:
        if steps := sorted(workspace.names(f"{run_folder(run.link)}/checkpoints")):
            found["launch.resume"] = steps[-1]
        return found
    _, checkpoint = final_checkpoint(context, run.link)
    found["launch"] = f"step {checkpoint.step:,}"
    if find_intact(context, "verify", verify_inputs(run.link, checkpoint)) is not None:
        found["verify"] = checkpoint.sha256[:12]
    return found | _registered(context, pipeline, checkpoint.link)


def _registered(context: RunContext, pipeline: PipelineSpec, checkpoint: Link) -> dict[str, str]:
    record = find_intact(context, "register", registration_inputs(pipeline.registry, checkpoint))
    if record is None:
        return {}
    version = model_refs.version_of(context.workspace, pipeline.registry.model, record.document)
    return {"evaluate": "with the registered version", "register": f"version {version}"}


def _stage(context: RunContext, name: str, found: dict[str, str], damages: dict[str, str]) -> StagePlan:
    expected_s = _last_duration_s(context, name)
    if name in found:
        return StagePlan(stage=name, state="found", detail=found[name], expected_s=0.0)
    damage = f"what it made is damaged: {damages[name]}" if name in damages else ""
    if (checkpoint := found.get(f"{name}.resume")) is not None:
        detail = "; ".join(filter(None, (f"from {checkpoint}", damage)))
        return StagePlan(stage=name, state="resume", detail=detail, expected_s=expected_s)
    return StagePlan(stage=name, state="run", detail=damage, expected_s=expected_s)


def _last_duration_s(context: RunContext, stage: str) -> float | None:
    """What the newest record of this stage took to make."""
    record = _newest_record(context, stage)
    return None if record is None else float(record.provenance["duration_s"])


def _newest_record(context: RunContext, stage: str) -> stages.StageRecord | None:
    """The record made last; one that cannot be read, or does not say when, is passed over."""
    records = []
    for name in context.workspace.names(f"stages/{stage}"):
        with contextlib.suppress(ValueError, IntegrityError):
            record = stages.StageRecord.model_validate(json.loads(context.workspace.read(f"stages/{stage}/{name}")))
            if {"unix_s", "duration_s"} <= record.provenance.keys():
                records.append(record)
    return max(records, key=lambda record: float(record.provenance["unix_s"]), default=None)


def _rank_memory_bytes(context: RunContext) -> int | None:
    """From the run that finished last: its checkpoint's tensors, and gradients the size of its weights."""
    record = _newest_record(context, "launch")
    if record is None:
        return None
    try:
        _, manifest = final_checkpoint(context, record.document)
    except IntegrityError:
        return None
    stored = sum(file.size_bytes for file in manifest.files)
    return stored + stored // 2


def print_plan(plan: Plan) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{plan.pipeline}[/bold]  {plan.num_files:,} files, {plan.size_bytes / 1e6:,.1f} MB")
    console.print(f"workspace  {plan.workspace}\n")
    table = Table("stage", "would", "", "last time", box=None, padding=(0, 2))
    for stage in plan.stages:
        last = (
            "" if stage.state == "found" else "never ran" if stage.expected_s is None else f"{stage.expected_s:.1f} s"
        )
        table.add_row(stage.stage, "be found" if stage.state == "found" else stage.state, stage.detail, last)
    console.print(table, soft_wrap=False)
    console.print(f"\n{plan.batch}")
    if plan.rank_memory_bytes is not None:
        console.print(
            f"memory       about {plan.rank_memory_bytes / 1e6:,.0f} MB of tensors a rank, without activations"
        )
    expected = "not known before a first run" if plan.expected_s is None else f"about {plan.expected_s:.0f} s"
    console.print(f"time         {expected}, besides Prefect's and MLflow's own start")
