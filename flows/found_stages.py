"""What of a retrain is found already: each stage's key is looked up, as far as it follows from the stages before."""

from __future__ import annotations

from data_contracts.documents import ContractReceipt, Link, ShardManifest, Snapshot
from flows.pipeline_spec import PipelineSpec
from tasks import model_refs
from tasks.context import RunContext
from tasks.launch import describe_run, final_checkpoint
from tasks.register import registration_inputs
from tasks.shard import known_fitted_state, outlook, shard_inputs
from tasks.stage import find_intact
from tasks.validate import label_leak, validate_inputs
from tasks.verify import verify_inputs
from training.checkpoint.layout import run_folder
from training.ledger import Event


class Damages:
    """A ledger listener: what was wrong with a record that was found, by stage."""

    def __init__(self) -> None:
        self.by_stage: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if event["event"] == "stage.damaged":
            stage = "shard" if event["stage"] == "fit" else str(event["stage"])
            self.by_stage.setdefault(stage, str(event["message"]))


def look_up(context: RunContext, pipeline: PipelineSpec, taken: Snapshot) -> dict[str, str]:
    """Found stages by name, each with what a person is told of it.

    Beside them: `shard.outlook`, what sharding would cost; `shard.rows`, how many there are to train on;
    `launch.resume`, the checkpoint that training would go on from; `start`, the model that it would start from.
    """
    workspace = context.workspace
    found: dict[str, str] = {}
    snapshot_inputs = {"source": pipeline.source.model_dump(mode="json"), "content": taken.sha256}
    if (record := find_intact(context, "snapshot", snapshot_inputs)) is None:
        return found
    found["snapshot"] = record.document.sha256[:12]
    validated = validate_inputs(context, pipeline.contract, taken.link, pipeline.shards)
    if (record := find_intact(context, "validate", validated)) is None:
        return found
    receipt = record.document
    leak = label_leak(workspace.load(receipt, ContractReceipt))
    found["validate"] = receipt.sha256[:12] + ("" if leak is None else f"; {leak}")
    found["shard.outlook"] = outlook(context, pipeline.shards, pipeline.source, taken.link, receipt)
    fitted = known_fitted_state(context, pipeline.shards)
    if fitted is None:
        return found
    record = find_intact(context, "shard", shard_inputs(pipeline.shards, taken.link, receipt, fitted))
    if record is None:
        return found
    manifest = workspace.load(record.document, ShardManifest)
    num_rows = manifest.num_rows("train")
    found["shard"], found["shard.rows"] = f"{num_rows:,} training rows", str(num_rows)
    settled = describe_run(context, pipeline.training, record.document)
    run = settled.run
    if settled.said:
        found["start"] = settled.said
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
