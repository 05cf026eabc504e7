"""Export rank: a verified checkpoint as a `torch.export` graph, made by the code that trained it.

The graph holds no Python of ours and no pickle, so it loads wherever torch does.
"""

from __future__ import annotations

from training.launch.rank import arm

rank = arm()

import argparse  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from data_contracts.documents import Link, RunSpec, ShardManifest  # noqa: E402
from data_contracts.publication import Workspace  # noqa: E402
from training.checkpoint.verify import load_checkpoint  # noqa: E402
from training.evaluation import restored_model  # noqa: E402


def export(workspace: Workspace, run: RunSpec, checkpoint: Path, out: Path) -> None:
    """Write `model.pt2` (tokens int64 (batch, sequence) -> logits) with its batch and sequence left free."""
    shards = workspace.load(run.manifest, ShardManifest)
    recipe, model = restored_model(workspace, run, shards, load_checkpoint(checkpoint))
    example = recipe.example_input()
    free = dict.fromkeys(range(example.dim()), torch.export.Dim.AUTO)
    program = torch.export.export(model.eval(), (example,), dynamic_shapes=(free,))
    torch.export.save(program, out / "model.pt2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--workspace", "--run", "--run-dir", "--checkpoint", "--out"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    workspace = Workspace(arguments.workspace)
    run = workspace.load(Link(kind="run", sha256=arguments.run), RunSpec)
    export(workspace, run, Path(arguments.checkpoint), Path(arguments.out))


if __name__ == "__main__":
    with rank.outcome():
        main()
