"""What of a retrain is found already: each stage's key is looked up, as far as it follows from the stages before."""

from __future__ import annotations

from headway.data_contracts.store.documents import ContractReceipt, Link, ShardManifest, Snapshot
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.core.context import RunContext
from headway.tasks.core.run_result import final_checkpoint
from headway.tasks.core.stage import find_intact
from headway.tasks.registry import model_refs
from headway.tasks.rows.first_rows import leaks_in_first_rows
from headway.tasks.stages.launch import describe_run
from headway.tasks.stages.register import registration_inputs
from headway.tasks.stages.shard import known_fitted_state, outlook, shard_inputs
from headway.tasks.stages.validate import label_leaks, validate_inputs
from headway.tasks.stages.verify import verify_inputs
from headway.training.checkpoint.layout import run_folder
from headway.training.observe.ledger import Event


class Damages:
    """A ledger listener: what was wrong with a record that was found, by stage."""

    def __init__(self) -> None:
        self.by_stage: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if event["event"] == "stage.damaged":
            stage = "shard" if event["stage"] == "fit" else str(event["stage"])
            self.by_stage.setdefault(stage, str(event["message"]))


def find_stages(context: RunContext, pipeline: PipelineSpec, taken: Snapshot) -> dict[str, str]:
    """Found stages by name, each with what a person is told of it.

    Beside them: `validate.outlook`, what validation will find that no model should be made of;
    `shard.outlook`, what sharding would cost; `shard.rows`, how many there are to train on;
    `launch.resume`, the checkpoint that training would go on from; `start`, the model that it would start from.
    """
    workspace = context.workspace
    found: dict[str, str] = {}
    snapshot_inputs = {"source": pipeline.source.model_dump(mode="json"), "content": taken.sha256}
    record = find_intact(context, "snapshot", snapshot_inputs)
    if record is not None:
        found["snapshot"] = record.document.sha256[:12]
        validated = validate_inputs(context, pipeline.contract, taken.link, pipeline.shards)
        record = find_intact(context, "validate", validated)
    if record is None:
        if outlook_of_label := leaks_in_first_rows(context, pipeline.shards, pipeline.source, taken):
            found["validate.outlook"] = outlook_of_label
        return found
    receipt = record.document
    leaks = label_leaks(workspace.load(receipt, ContractReceipt))
    found["validate"] = "; ".join((receipt.sha256[:12], *leaks))
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
    if settled.message:
        found["start"] = settled.message
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
