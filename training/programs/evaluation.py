"""Evaluation: what a checkpoint makes of held-out examples, the same bits on any number of ranks.

Rows are cut into blocks by the manifest alone; ranks share the blocks out and need not meet. Each block's loss is
summed by example; `merge` adds the blocks up exactly (`math.fsum`), in an order that no rank decides.

As a rank: `headway.training.programs.evaluation --workspace URI --request FILE --out DIR`. Its import costs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.data_contracts.store.documents import FittedState, Frozen, Link, RunSpec, Sha256, ShardManifest, StoredFile
from headway.data_contracts.store.errors import ConfigError, IntegrityError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import read_regular
from headway.training.config.shards import HELDOUT
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.baselines import fitted_baseline
from headway.training.evaluation.measures import Sums, metric_set_for
from headway.training.evaluation.scorers import Columns, Measured, Predict, score_all, scorer_of
from headway.training.graph_check.safe_graph import load_graph
from headway.training.launch.node.rank_process import RankProcess, arm
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.process_ends import leave, record_imports

if TYPE_CHECKING:
    from torch import nn

    from headway.training.checkpoint.verify import VerifiedCheckpoint
    from headway.training.recipes.protocol import Recipe


class EvaluationRequest(Frozen):
    checkpoint: str
    """The checkpoint's folder."""
    run: Sha256
    manifest: Sha256
    """The shards to evaluate on, encoded by the fitted state that the run was trained with."""
    split: str = HELDOUT
    baselines: bool = True
    """Also score simpler models, fitted on the manifest's training split."""
    graph: StoredFile | None = None
    """The registered graph, to be scored instead of the checkpoint when that is lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a model made of a split, example by example, sorted by name."""

    examples: tuple[str, ...]
    slices: tuple[str, ...]
    """Which slice each example belongs to."""
    sums: Sums
    baselines: dict[str, Sums]
    """The same sums, for simpler models on the same examples."""


def part_name(rank: int) -> str:
    return f"rank-{rank}.json"


def merge(folder: Path, num_ranks: int) -> Scores:
    """Put the ranks' parts together.

    Raises:
        TrainingFailed: a part is missing or unreadable, or blocks are missing or doubled.
    """
    try:
        # Every rank's part is read: one that is missing must not pass for examples that do not exist.
        parts = [json.loads(read_regular(folder / part_name(rank))) for rank in range(num_ranks)]
        num_blocks = int(parts[0]["num_blocks"])
        slices, sums = _by_example([block for part in parts for block in part["blocks"]], num_blocks, folder)
        scored = ((name, blocks) for part in parts for name, blocks in part["baselines"].items())
        baselines = {name: _by_example(blocks, num_blocks, folder)[1] for name, blocks in scored}
    except (OSError, ValueError, KeyError) as error:
        raise TrainingFailed(f"a rank left no readable scores ({error}).", where=str(folder)) from error
    return Scores(examples=tuple(slices), slices=tuple(slices.values()), sums=sums, baselines=baselines)


def _by_example(blocks: list[dict[str, Any]], num_blocks: int, folder: Path) -> tuple[dict[str, str], Sums]:
    """Slice of every example, by name and sorted, and sums in the same order, added up exactly.

    Raises:
        TrainingFailed: blocks are missing or doubled.
    """
    # In the order of blocks, not of ranks.
    blocks = sorted(blocks, key=lambda block: int(block["block"]))
    # Each block once: a rank that was started twice, or another number of ranks, shows here.
    if [block["block"] for block in blocks] != list(range(num_blocks)):
        raise TrainingFailed("the ranks' scores do not make up the whole split.", where=str(folder))
    slices: dict[str, str] = {}
    addends: dict[str, dict[str, list[float]]] = {}
    for block in blocks:
        slices.update(zip(block["examples"], block["slices"], strict=True))
        for name, values in block["sums"].items():
            for example, value in zip(block["examples"], values, strict=True):
                addends.setdefault(name, {}).setdefault(example, []).append(value)
    examples = sorted(slices)
    # `fsum` is exact, so the order in which blocks were scored does not matter.
    sums = {name: np.array([math.fsum(its[example]) for example in examples]) for name, its in addends.items()}
    return {example: slices[example] for example in examples}, sums


def recipe_of(workspace: Workspace, run: RunSpec, shards: ShardManifest) -> Recipe:
    """The run's recipe, for shards that its model can read.

    Raises:
        ConfigError: the shards were encoded by another fitted state than the run's.
    """
    from headway.training.engine.run_documents import data_shape, training_spec
    from headway.training.recipes.load import load_recipe

    # Token ids or columns mean something else under another fitted state, and scores would be nonsense.
    if shards.fitted != run.fitted:
        raise ConfigError("the shards were encoded by another fitted state than the run's.", where=shards.link.short)
    spec = training_spec(run)
    shape = data_shape(shards, workspace.load(run.fitted, FittedState))
    return load_recipe(spec.recipe.name, spec.recipe.model, shape)


def restored_model(recipe: Recipe, run: RunSpec, checkpoint: VerifiedCheckpoint) -> nn.Module:
    """A verified checkpoint's model, in evaluation mode on the CPU.

    Raises:
        IntegrityError: the checkpoint is another run's, or does not fit the recipe's model.
    """
    from headway.training.engine.learner import load_model_tensors

    if checkpoint.manifest.run != run.link:
        raise IntegrityError("it belongs to another run.", where=str(checkpoint.directory))
    model = recipe.build()
    load_model_tensors(model, checkpoint.tensors)
    return model.eval()


def graph_model(workspace: Workspace, graph: StoredFile) -> nn.Module:
    """A registered graph as a model: the bytes that were checked are the bytes that are read.

    Raises:
        IntegrityError: gone, or not the registered bytes; or loading them could run code.
    """
    # Read once: the bytes that are hashed are the ones that are loaded.
    data = workspace.read(graph.path)
    if sha256_bytes(data) != graph.sha256:
        raise IntegrityError("its bytes are not the registered ones.", where=graph.path)
    return load_graph(data, graph.path)


def model_to_score(
    rank: RankProcess, workspace: Workspace, request: EvaluationRequest, run: RunSpec, recipe: Recipe
) -> Predict:
    """The checkpoint's model where training would put it; a registered graph on the CPU, which it was made for."""
    from headway.training.checkpoint.verify import load_checkpoint
    from headway.training.ranks.distributed import choose_device

    if request.graph is not None:
        return prediction(recipe, graph_model(workspace, request.graph))
    verified = load_checkpoint(Path(request.checkpoint), on_part=Heartbeat(rank.ledger, "restore"))
    return prediction(recipe, restored_model(recipe, run, verified).to(choose_device()))


def evaluate_share(rank: RankProcess, workspace: Workspace, request: EvaluationRequest) -> dict[str, Any]:
    """This rank's blocks. Rank 0 also fits and scores the baselines."""
    from headway.training.engine.run_documents import training_spec
    from headway.training.ranks.distributed import enable_determinism

    run = workspace.load(Link(kind="run", sha256=request.run), RunSpec)
    manifest = workspace.load(Link(kind="manifest", sha256=request.manifest), ShardManifest)
    with rank.ledger.span("restore"):
        # Before the model is made: kernels are chosen by these settings.
        enable_determinism(training_spec(run).num_threads)
        predict = model_to_score(rank, workspace, request, run, recipe_of(workspace, run, manifest))
    with rank.ledger.span("data.open"):
        reader = ShardReader(workspace, manifest, request.split, on_shard=Heartbeat(rank.ledger, "data.open"))
        scorer = scorer_of(workspace, manifest, reader)
    with rank.ledger.span("evaluate.model"):
        # Strided, so that ranks share the work evenly however the split is ordered.
        own = range(rank.rank, scorer.num_blocks, rank.world_size)
        blocks = score_all(scorer, own, predict, on_block=Heartbeat(rank.ledger, "evaluate.model"))
    baselines = {}
    # On one rank: it fits on the training split, and its sums must not be counted twice.
    if request.baselines and rank.rank == 0:
        name = metric_set_for(workspace, manifest).gate_baseline
        with rank.ledger.span("evaluate.baseline"):
            heartbeat = Heartbeat(rank.ledger, "evaluate.baseline")
            baseline = fitted_baseline(workspace, manifest, reader, on_shard=heartbeat)
            baselines[name] = score_all(scorer, range(scorer.num_blocks), baseline, on_block=heartbeat)
    return {"format_version": 2, "num_blocks": scorer.num_blocks, "blocks": blocks, "baselines": baselines}


def prediction(recipe: Recipe, model: nn.Module) -> Predict:
    import torch

    from headway.training.data.load.device_copy import to_tensors

    device = next(model.parameters()).device

    def predict(columns: Columns) -> Measured:
        with torch.inference_mode():
            measured = recipe.measures(model, to_tensors(columns, device))
        return {name: values.double().cpu().numpy() for name, values in measured.items()}

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.training.programs.evaluation", description=__doc__)
    parser.add_argument("--workspace", required=True, metavar="URI")
    parser.add_argument("--request", required=True, metavar="FILE", type=Path)
    parser.add_argument("--out", required=True, metavar="DIR", type=Path)
    arguments, _ = parser.parse_known_args()  # a gang passes --run-spec and --run-dir to all
    rank = arm(arguments.out / "attempt")
    with rank.outcome(), rank.expendable():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        try:
            request = EvaluationRequest.model_validate_json(read_regular(arguments.request))
        except (OSError, ValidationError) as error:
            raise ConfigError(f"not an evaluation request ({error}).", where=str(arguments.request)) from error
        part = evaluate_share(rank, Workspace(arguments.workspace), request)
        Workspace(str(arguments.out)).publish(part_name(rank.rank), canonical_json(part))
    leave()


if __name__ == "__main__":
    main()
