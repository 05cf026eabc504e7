"""Export rank: a verified checkpoint as a `torch.export` graph, made by the code that trained it, and as plain weights.

The graph holds no Python of ours and no pickle, and loads wherever torch does; the weights do not even need torch.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    from torch.export import ExportedProgram

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

    A graph has one way alone: a length that decides the way through `forward` is fixed to the example's.
    The same model gives the same bytes on any machine with these versions of torch and numpy.

    Raises:
        ConfigError: torch.export cannot trace the model, or it goes another way for other numbers of rows, or its graph
            needs what is loaded nowhere unchecked, such as an operator that is not on the list.
    """
    import numpy as np
    import torch

    program, conditions = _traced(model, example, {})
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
    before = _versions(model)
    with torch.inference_mode():
        # The example and its output let any reader test that the graph computes what it did here.
        np.save(out / INPUT_EXAMPLE, example.numpy(), allow_pickle=False)
        np.save(out / OUTPUT_EXAMPLE, model(example).numpy(), allow_pickle=False)
    # Of a model that keeps something from call to call no two answers are alike.
    if _versions(model) != before:
        return
    if otherwise := departures(model, program.module(), example, conditions):
        _require_one_way(model, otherwise.get(0, {}))
        # Whoever gives another length is refused by name, and not answered with other numbers than the model's.
        program, _ = _traced(model, example, otherwise)
        torch.export.save(program, out / GRAPH)


def _traced(
    model: nn.Module, example: Tensor, otherwise: Mapping[int, Mapping[int, str]]
) -> tuple[ExportedProgram, list[str]]:
    """The program as it may be saved, and what torch took for granted of lengths when it chose a way through `forward`.

    Args:
        otherwise: `departures`, whose lengths the program is to refuse.
    """
    import torch

    # Free: a graph that was specialised to the example's length would serve no other batch.
    lengths: dict[int, Any] = dict.fromkeys(range(example.dim()), torch.export.Dim.AUTO)
    for place, departed in otherwise.items():
        # torch keeps no bound below 3: what it traces as 2 or more it takes of 0 and 1 as well.
        is_one_alone = departed.keys() == {1} and example.shape[place] > 2
        lengths[place] = torch.export.Dim.AUTO(min=3) if is_one_alone else torch.export.Dim.STATIC
    try:
        with _tracing_alone():
            program = torch.export.export(model, (example,), dynamic_shapes=(lengths,))
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
    conditions, program._guards_code = list(program._guards_code), []
    return program, conditions


def departures(
    model: nn.Module, graph: nn.Module, example: Tensor, conditions: Sequence[str]
) -> dict[int, dict[int, str]]:
    """Dimensions of the input along which the graph has another answer than the model, with the lengths, and how.

    Python that asks for a length (`if x.shape[0] % 2`) is followed one way, the example's, and a graph does not say so.

    Args:
        conditions: that torch took for granted, as Python; bounds of a length are in the graph.
    """
    import torch

    has_ways = any(sign in condition for condition in conditions for sign in ("%", "//", "!=", "=="))
    found: dict[int, dict[int, str]] = {}
    for dim, size in enumerate(example.shape):
        # Of 1 torch never says what it took for granted.
        tried = {1, 2, 3, size - 1, size + 1} if has_ways else {1}
        for length in sorted(tried - {0, size}):
            given = example.index_select(dim, torch.arange(length) % max(size, 1)) if size else example
            try:
                with torch.inference_mode(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of lengths that nobody wants
                    # Not called as it is: a graph's own call prints what it refuses.
                    made, expected = torch.nn.Module.__call__(graph, given.clone()), model(given.clone())
                torch.testing.assert_close(made, expected, rtol=1e-2, atol=1e-3, equal_nan=True)
            except AssertionError as error:
                found.setdefault(dim, {})[length] = str(error).partition("\n")[0]
            except Exception:
                continue  # either refuses this length, by whatever error, and so answers nothing
    return found


def _require_one_way(model: nn.Module, departed: Mapping[int, str]) -> None:
    """Raises `ConfigError`: for another number of rows the graph has other answers than the model."""
    for rows, how in departed.items():
        raise ConfigError(
            f"its graph would have other answers than the model for an input of {rows} row(s): {how}",
            where=definition(type(model)) or "recipe",
            advice="torch.export follows one way through `forward` alone. Let no `if` ask for the number of rows, or "
            "choose by torch.where.",
        )


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Changes when a call of the model leaves something behind in it."""
    return [(id(value), value._version) for value in (*model.buffers(), *model.parameters())]


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
