"""Stage *verify*: nothing is evaluated or registered before its checkpoint is proved, digest, weight and loss."""

from __future__ import annotations

import json

from data_contracts.documents import CheckpointManifest, Link, RunSpec
from data_contracts.errors import IntegrityError
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.gangs import run_quietly
from tasks.launch import checkpoint_here, final_checkpoint, result_files
from tasks.stage import Made, find_or_make, stage_task
from training.checkpoint.layout import run_folder
from training.launch.spec import LaunchSpec

CODE = ("training.checkpoint.verify_worker",)


@stage_task(name="verify", task_run_name="verify checkpoint of {context.pipeline}")
def verify(context: RunContext, spec: LaunchSpec, run: Link) -> Link:
    """Manifest, digests, finite weights, and the proof batch's loss, recomputed in a process of its own.

    Raises:
        IntegrityError: the checkpoint is not what was saved; names the file.
    """
    _, manifest = final_checkpoint(context, run)
    return find_or_make(
        context,
        "verify",
        verify_inputs(run, manifest),
        lambda: _prove(context, spec, run, manifest),
        shown=f"step {manifest.step:,}",
        exclusive=True,
    )


def verify_inputs(run: Link, checkpoint: CheckpointManifest) -> dict[str, object]:
    return {"run": run.sha256, "checkpoint": checkpoint.sha256, "code": code_version(*CODE)}


def _prove(context: RunContext, spec: LaunchSpec, run: Link, manifest: CheckpointManifest) -> Made:
    workspace = context.workspace
    folder, _ = final_checkpoint(context, run)
    run_dir = workspace.local_path(f"{run_folder(run)}/verify")
    run_dir.mkdir(parents=True, exist_ok=True)
    out = run_dir / "result.json"
    out.unlink(missing_ok=True)
    arguments = ("--checkpoint", str(checkpoint_here(workspace, folder, manifest)), "--out", str(out))
    run_quietly(context, spec, workspace.load(run, RunSpec), "training.checkpoint.verify_worker", run_dir, *arguments)
    result = json.loads(out.read_bytes())
    if result["manifest_sha256"] != manifest.sha256 or not result["proof_holds"]:
        raise IntegrityError(
            f"the restored model's loss on the proof batch is {result['proof_loss']}, "
            f"not {float.fromhex(manifest.proof.loss_hex)}.",
            where=folder,
            advice="The checkpoint is not used; run again to train from the newest good one.",
        )
    return Made(document=manifest, files=result_files(context, run))
