"""Export rank: a verified checkpoint as a `torch.export` graph, made by the code that trained it.

The graph holds no Python of ours and loads wherever torch does, without unpickling; torch itself keeps the example
input in the archive as a small pickle.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from training.launch.rank import Rank, arm
from training.process_ends import leave, record_imports
from training.pulse import Pulse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    for name in ("--workspace", "--run-spec", "--run-dir", "--checkpoint", "--out"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    rank = arm(Path(arguments.out) / "attempt")
    with rank.outcome():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        export(rank, arguments.workspace, arguments.run_spec, Path(arguments.checkpoint), Path(arguments.out))
    leave()


def export(rank: Rank, workspace_uri: str, run_sha256: str, checkpoint: Path, out: Path) -> None:
    """Write `model.pt2`: tokens int64 (batch, sequence) to logits, both lengths left free."""
    import torch

    from data_contracts.documents import Link, RunSpec, ShardManifest
    from data_contracts.publication import Workspace
    from training.checkpoint.verify import load_checkpoint
    from training.evaluation import restored_model

    workspace = Workspace(workspace_uri)
    with rank.ledger.span("restore"):
        run = workspace.load(Link(kind="run", sha256=run_sha256), RunSpec)
        shards = workspace.load(run.manifest, ShardManifest)
        verified = load_checkpoint(checkpoint, on_file=Pulse(rank.ledger, "restore"))
        recipe, model = restored_model(workspace, run, shards, verified)
    example = recipe.example_input()
    free = dict.fromkeys(range(example.dim()), torch.export.Dim.AUTO)
    with rank.ledger.span("export.graph"):
        program = torch.export.export(model, (example,), dynamic_shapes=(free,))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            # Traces name this machine's folders: the graph's bytes would depend on where it was made.
            node.meta.pop("stack_trace", None)
    with rank.ledger.span("export.save"):
        torch.export.save(program, out / "model.pt2")


if __name__ == "__main__":
    main()
