"""A rank of its own that proves a checkpoint: digests, finite weights, and the proof batch's loss.

`python -m headway.training.programs.verify_worker --workspace URI --checkpoint DIR --out FILE`
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headway.data_contracts.store.documents import RunSpec, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.launch.node.rank_process import RankProcess, arm
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.process_ends import leave, record_imports


def prove(rank: RankProcess, workspace: Workspace, checkpoint: Path) -> dict[str, Any]:
    """Verify a checkpoint and recompute the loss of its proof batch.

    Raises:
        IntegrityError: naming the file or tensor; or the loss differs.
    """
    from headway.training.checkpoint.proof import check_proof, fingerprint, proof_loss
    from headway.training.checkpoint.read import read_checkpoint
    from headway.training.checkpoint.universal import PREFIX
    from headway.training.engine.run_documents import training_spec
    from headway.training.programs.evaluation import recipe_of, restored_model
    from headway.training.ranks.distributed import choose_device, enable_determinism

    with rank.ledger.span("restore"):
        # All is verified; of the rest, such as the optimizer's state, nothing is kept in memory.
        verified = read_checkpoint(checkpoint, prefix=PREFIX, on_part=Heartbeat(rank.ledger, "restore"))
        run = workspace.load(verified.manifest.run, RunSpec)
        spec = training_spec(run)
        # As in training: other settings choose other kernels, and equal bits could not be expected.
        enable_determinism(spec.num_threads)
        device = choose_device()
        recipe = recipe_of(workspace, run, workspace.load(run.manifest, ShardManifest))
        model = restored_model(recipe, run, verified).to(device)
    with rank.ledger.span("proof"):
        batch = {name: value.to(device) for name, value in verified.proof_batch.items()}
        # FSDP2 computed the recorded loss in half precision, which a whole model here does not.
        in_half = spec.precision != "fp32" and spec.parallel.shard != 1 and spec.parallel.mode == "fast"
        measured = proof_loss(recipe, model, batch)
        proof = check_proof(verified.manifest, measured, fingerprint(device), recorded_in_half=in_half)
    return {
        "format_version": 1,
        "checkpoint": checkpoint.name,
        "manifest_sha256": verified.manifest.sha256,
        "num_tensors": len({piece.tensor for piece in verified.manifest.layout}),
        "proof_holds": True,
        "proof_is_exact": proof.same_fingerprint,
        "proof_loss": proof.measured,
        "recorded_loss": proof.recorded,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.training.programs.verify_worker", description=__doc__)
    parser.add_argument("--workspace", required=True, metavar="URI")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", type=Path)
    parser.add_argument("--out", required=True, metavar="FILE", type=Path)
    arguments, _ = parser.parse_known_args()  # a gang passes --run-spec and --run-dir to all
    rank = arm(arguments.out.parent / "attempt")
    with rank.outcome(), rank.expendable():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        result = prove(rank, Workspace(arguments.workspace), arguments.checkpoint)
        Workspace(str(arguments.out.parent)).publish_json(arguments.out.name, result)
    leave()


if __name__ == "__main__":
    main()
