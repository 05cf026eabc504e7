"""Export rank: a verified checkpoint as a `torch.export` graph, made by the code that trained it, and as plain weights.

The graph holds no Python of ours and no pickle, and loads wherever torch does; the weights do not even need torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import ConfigError, shortened
from headway.training.graph_check.check import check_graph_file
from headway.training.graph_check.refusal import UnsafeGraph
from headway.training.launch.node.rank_process import RankProcess, arm
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.process_ends import leave, record_imports
from headway.training.recipes.blame import definition

if TYPE_CHECKING:
    from torch import Tensor, nn

    from headway.data_contracts.store.documents import FittedState, RunSpec, ShardManifest

GRAPH, INPUT_EXAMPLE, OUTPUT_EXAMPLE = "model.pt2", "input.npy", "output.npy"
WEIGHTS = "weights"
"""The folder of safetensors, configuration and what the encoder learnt."""
EXCLUDED = ("stack_trace", "source_fn_stack", "from_node", "custom")
"""Of a node's metadata: names of this machine's folders, which the graph's bytes would depend on, and paths and JSON
that torch would look up and parse."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.training.programs.export", description=__doc__)
    for name in ("--workspace", "--run-spec", "--run-dir", "--checkpoint", "--out"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    rank = arm(Path(arguments.out) / "attempt")
    with rank.outcome(), rank.expendable():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        export(rank, arguments.workspace, arguments.run_spec, Path(arguments.checkpoint), Path(arguments.out))
    leave()


def export(rank: RankProcess, workspace_uri: str, run_sha256: str, checkpoint: Path, out: Path) -> None:
    """Write the graph of a checkpoint, an example of what goes in and what comes out, and the weights."""
    from headway.data_contracts.store.documents import FittedState, Link, RunSpec, ShardManifest
    from headway.data_contracts.store.publication import Workspace
    from headway.training.checkpoint.read import read_checkpoint
    from headway.training.checkpoint.universal import PREFIX, export_model
    from headway.training.data.encode.encoders import fitted_file
    from headway.training.programs.evaluation import recipe_of, restored_model

    workspace = Workspace(workspace_uri)
    with rank.ledger.span("restore"):
        run = workspace.load(Link(kind="run", sha256=run_sha256), RunSpec)
        shards = workspace.load(run.manifest, ShardManifest)
        verified = read_checkpoint(checkpoint, prefix=PREFIX, on_part=Heartbeat(rank.ledger, "restore"))
        recipe = recipe_of(workspace, run, shards)
        model = restored_model(recipe, run, verified)
    with rank.ledger.span("export.graph"):
        write_graph(model, recipe.example_input(), out)
    with rank.ledger.span("export.weights"):
        fitted = workspace.load(run.fitted, FittedState)
        store = Workspace(str(out / WEIGHTS))
        for file in fitted.files:
            name = file.path.rpartition("/")[2]
            store.publish(name, fitted_file(workspace, fitted, name))
        # What was verified, as it was before the graph was made of it: the checkpoint is not read again.
        export_model(
            verified,
            out / WEIGHTS,
            model_config(run, shards, fitted),
            on_part=Heartbeat(rank.ledger, "export.weights"),
        )


def model_config(run: RunSpec, shards: ShardManifest, fitted: FittedState) -> dict[str, Any]:
    """What builds the model and encodes its rows, as JSON: recipe, data shape, encoder and what that learnt."""
    from headway.training.engine.run_documents import data_shape

    shape = data_shape(shards, fitted)
    return {
        "recipe": run.config["recipe"]["name"],
        "fields": run.config["recipe"]["model"],
        "data": {"content": shape.content, **shape.model_dump(mode="json")},
        "encoder": {"kind": fitted.encoder, "spec": fitted.spec, "fitted": fitted.statistics},
    }


def write_graph(model: nn.Module, example: Tensor, out: Path) -> None:
    """Write `model.pt2` with every length of the input left free, `input.npy`, and `output.npy` for that input.

    The same model gives the same bytes on any machine with these versions of torch and numpy.

    Raises:
        ConfigError: torch.export cannot trace the model, or its graph needs what is loaded nowhere unchecked, such as
            an operator that is not on the list.
    """
    import numpy as np
    import torch

    # Every length is free: a graph that was specialised to the example's would serve no other batch.
    free = dict.fromkeys(range(example.dim()), torch.export.Dim.AUTO)
    try:
        with _tracing_alone():
            program = torch.export.export(model, (example,), dynamic_shapes=(free,))
    except Exception as error:  # whatever tracing a user's code comes upon
        message = shortened(" ".join(str(error).split()), 300)
        raise ConfigError(
            f"torch.export cannot trace the model ({type(error).__name__}: {message}).",
            where=definition(type(model)) or "recipe",
            advice="Its `forward` must be one graph for inputs of any length: torch.export's documentation says what "
            "Python it follows.",
        ) from error
    # Recursively: control flow has graphs of its own inside.
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for name in EXCLUDED:
                node.meta.pop(name, None)
    program.graph_module.meta.pop("custom", None)
    # torch would keep it as a pickle; it stands beside the graph as an array.
    program._example_inputs = None
    # Source that torch executes, and only where there are example inputs.
    program._guards_code = []
    torch.export.save(program, out / GRAPH)
    # Checked as a reader will: what would be refused later is refused while the recipe can still be changed.
    try:
        check_graph_file(out / GRAPH)
    except UnsafeGraph as error:
        raise ConfigError(
            f"the model's graph would be loaded nowhere: {error}.",
            advice="Write its `forward` with other operators on tensors: `training/graph_check/operators.py` lists "
            "those that pass. None draws numbers by chance, is quantized or sparse, or is a library's own.",
        ) from error
    with torch.inference_mode():
        # The example and its output let any reader test that the graph computes what it did here.
        np.save(out / INPUT_EXAMPLE, example.numpy(), allow_pickle=False)
        np.save(out / OUTPUT_EXAMPLE, model(example).numpy(), allow_pickle=False)


NOT_TRACED_WITH = ("redis", "torch.distributed.fsdp")
"""What torch's compiler imports where it is installed, and goes on without: the client of a cache that it may have on
another machine, and models in shards, which the one to trace is not."""


@contextlib.contextmanager
def _tracing_alone() -> Iterator[None]:
    """In the body torch's compiler, which tracing imports, is spared what takes a third of its import and is not used:
    to look for garbage among what stays, and `NOT_TRACED_WITH`."""
    withheld = [name for name in NOT_TRACED_WITH if name not in sys.modules]
    # To Python they are not installed.
    sys.modules.update(dict.fromkeys(withheld))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for name in withheld:
            sys.modules.pop(name, None)


if __name__ == "__main__":
    main()
