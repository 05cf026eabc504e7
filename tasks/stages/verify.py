"""Stage *verify*: nothing is evaluated or registered before its checkpoint is proved, digest, weight and loss."""

from __future__ import annotations

import json

from headway.data_contracts.store.documents import CheckpointManifest, Link, RunSpec
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.regular_files import read_regular
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_stepless
from headway.tasks.core.outlook import Outlook, look_up, would_run
from headway.tasks.core.run_result import checkpoint_here, final_checkpoint, result_files
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.gang import LaunchSpec

CODE = ("headway.training.programs.verify_worker",)


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


def outlook(context: RunContext, run: Link | None) -> Outlook:
    """Args:
    run: None: it is not trained to its end.
    """
    if run is None:
        return would_run(context, "verify")
    _, manifest = final_checkpoint(context, run)
    # Proved again or not, the checkpoint is the same.
    return look_up(context, "verify", verify_inputs(run, manifest)).model_copy(update={"document": manifest.link})


def verify_inputs(run: Link, checkpoint: CheckpointManifest) -> dict[str, object]:
    return {"run": run.sha256, "checkpoint": checkpoint.sha256, "code": code_version(*CODE)}


def _prove(context: RunContext, spec: LaunchSpec, run: Link, manifest: CheckpointManifest) -> StageOutput:
    workspace = context.workspace
    folder, _ = final_checkpoint(context, run)
    run_dir = workspace.local_path(f"{run_folder(run)}/verify")
    run_dir.mkdir(parents=True, exist_ok=True)
    out = run_dir / "result.json"
    # An earlier proof's answer must not pass for this one's, should the rank end without writing any.
    out.unlink(missing_ok=True)
    arguments = ("--checkpoint", str(checkpoint_here(workspace, folder, manifest)), "--out", str(out))
    run_stepless(
        context, spec, workspace.load(run, RunSpec), "headway.training.programs.verify_worker", run_dir, *arguments
    )
    result = json.loads(read_regular(out))
    if result["manifest_sha256"] != manifest.sha256 or not result["proof_holds"]:
        raise IntegrityError(
            f"the restored model's loss on the proof batch is {result['proof_loss']}, "
            f"not {float.fromhex(manifest.proof.loss_hex)}.",
            where=folder,
            advice="The checkpoint is not used; run again to train from the newest good one.",
        )
    return StageOutput(document=manifest, files=result_files(context, run))
