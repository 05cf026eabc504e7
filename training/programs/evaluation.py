"""Evaluation: what a checkpoint makes of held-out examples, the same bits on any number of ranks.

Rows are cut into blocks by the manifest alone; ranks share the blocks out and need not meet. Each block's loss is
summed by example; `merge` adds the blocks up exactly (`math.fsum`), in an order that no rank decides.

As a rank: `headway.training.programs.evaluation --workspace URI --request FILE --out DIR`. Its import costs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, ValidationError
from safetensors.numpy import save

from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.data_contracts.store.documents import FittedState, Frozen, Link, RunSpec, Sha256, ShardManifest, StoredFile
from headway.data_contracts.store.errors import ConfigError, IntegrityError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import read_regular
from headway.training.config.shapes import ImageShape, TabularNumberShape, TabularShape
from headway.training.config.shards import HELDOUT, TRAIN
from headway.training.data.encode.byte_pair import TOKENIZER_FILE, token_bytes
from headway.training.data.encode.encoders import fitted_file
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.baselines import fitted_baseline
from headway.training.evaluation.continuations import continuations
from headway.training.evaluation.importance import permutation_importance
from headway.training.evaluation.measures import Sums, metric_set_for
from headway.training.evaluation.outputs import OutputCapture, Outputs, joined, stride_of
from headway.training.evaluation.scorers import Columns, Measured, Predict, score_all, scorer_of
from headway.training.graph_check.safe_graph import load_graph
from headway.training.launch.node.rank_process import RankProcess, arm
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.process_ends import leave, record_imports

if TYPE_CHECKING:
    from torch import nn

    from headway.training.checkpoint.read import VerifiedCheckpoint
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
    boosted_trees: bool = False
    """Also score boosted trees of a table, fitted on rows of it."""
    graph: StoredFile | None = None
    """The registered graph, to be scored instead of the checkpoint when that is lost."""


class DetailsRequest(Frozen):
    """What a page shows beside the scores. In a file of its own, which a run's older code leaves unread."""

    model_config = ConfigDict(extra="ignore")

    seed: int = 0
    continuations: int = 0
    """Held-out rows of text whose beginnings the model continues."""
    importance: bool = True
    """Of the inputs of a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What the model said, beside what it cost."""

    outputs: Outputs | None = None
    """None of text, or where `reason` says why."""
    reason: str = ""
    importance_rows: NDArray[np.int64] | None = None
    """Numbers of rows of the split."""
    importance: NDArray[np.float64] | None = None
    """(inputs, rows): what a row costs more once the input is another row's."""
    continuations: tuple[dict[str, Any], ...] = ()
    """`row`, `prompt` and `text` each."""


NO_DETAILS = Details(reason="the run's code is older than this page, and hands back scores alone")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a model made of a split, example by example, sorted by name."""

    examples: tuple[str, ...]
    slices: tuple[str, ...]
    """Which slice each example belongs to."""
    sums: Sums
    baselines: dict[str, Sums]
    """The same sums, for simpler models on the same examples."""
    details: Details = NO_DETAILS


def part_name(rank: int) -> str:
    return f"rank-{rank}.json"


def tensors_name(rank: int) -> str:
    return f"rank-{rank}.safetensors"


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
        details = _details(folder, [part.get("details") for part in parts])
    except (OSError, ValueError, KeyError) as error:
        raise TrainingFailed(f"a rank left no readable scores ({error}).", where=str(folder)) from error
    slice_names = tuple(slices.values())
    return Scores(examples=tuple(slices), slices=slice_names, sums=sums, baselines=baselines, details=details)


def _details(folder: Path, parts: list[dict[str, Any] | None]) -> Details:
    """Raises `OSError` or `ValueError`: a rank's tensors are gone, or are not those that it speaks of."""
    told = [part for part in parts if part is not None]
    if len(told) < len(parts):
        return NO_DETAILS
    from safetensors.numpy import load

    tensors = []
    for rank, part in enumerate(told):
        data = read_regular(folder / tensors_name(rank))
        # An earlier attempt's file may lie there.
        if sha256_bytes(data) != part["tensors_sha256"]:
            raise ValueError(f"{tensors_name(rank)} is not the one that its rank speaks of")
        tensors.append(load(data))
    first = tensors[0]
    importance = {name: first.pop(name) for name in ("importance_rows", "importance") if name in first}
    reason = next((part["reason"] for part in told if part["reason"]), "")
    return Details(
        outputs=joined(tensors) if any(tensors) and not reason else None,
        reason=reason,
        continuations=tuple(told[0]["continuations"]),
        **importance,
    )


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
    data = workspace.read(graph.path, graph.size_bytes)
    if sha256_bytes(data) != graph.sha256:
        raise IntegrityError("its bytes are not the registered ones.", where=graph.path)
    return load_graph(data, graph.path)


def model_to_score(
    rank: RankProcess, workspace: Workspace, request: EvaluationRequest, run: RunSpec, recipe: Recipe
) -> nn.Module:
    """The checkpoint's model where training would put it; a registered graph on the CPU, which it was made for."""
    from headway.training.checkpoint.read import read_checkpoint
    from headway.training.checkpoint.universal import PREFIX
    from headway.training.ranks.distributed import choose_device

    if request.graph is not None:
        return graph_model(workspace, request.graph)
    # What a rank uses it verifies; the rest, such as the optimizer's state, is read by one for all.
    rest = None if rank.rank == 0 else ()
    verified = read_checkpoint(
        Path(request.checkpoint), prefix=PREFIX, rest=rest, on_part=Heartbeat(rank.ledger, "restore")
    )
    return restored_model(recipe, run, verified).to(choose_device())


def evaluate_share(
    rank: RankProcess,
    workspace: Workspace,
    request: EvaluationRequest,
    details: DetailsRequest | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """This rank's blocks. Rank 0 also fits and scores the baselines.

    Args:
        details: what else is wanted; its tensors go into `out`.
    """
    from headway.training.engine.run_documents import training_spec
    from headway.training.ranks.distributed import enable_determinism

    run = workspace.load(Link(kind="run", sha256=request.run), RunSpec)
    manifest = workspace.load(Link(kind="manifest", sha256=request.manifest), ShardManifest)
    with rank.ledger.span("restore"):
        # Before the model is made: kernels are chosen by these settings.
        enable_determinism(training_spec(run).num_threads)
        model = model_to_score(rank, workspace, request, run, recipe := recipe_of(workspace, run, manifest))
        predict = prediction(recipe, model)
    with rank.ledger.span("data.open"):
        reader = ShardReader(workspace, manifest, request.split, on_shard=Heartbeat(rank.ledger, "data.open"))
        scorer = scorer_of(workspace, manifest, reader)
    with rank.ledger.span("evaluate.model"):
        # Strided, so that ranks share the work evenly however the split is ordered.
        own = range(rank.rank, scorer.num_blocks, rank.world_size)
        capture = None if details is None else _capture(workspace, manifest, reader, scorer.block_rows, predict, model)
        on_block = Heartbeat(rank.ledger, "evaluate.model")
        of_block = None if capture is None else capture.of_block
        blocks = score_all(scorer, own, predict, on_block=on_block, of_block=of_block)
    baselines = {}
    # On one rank: it fits on the training split, and its sums must not be counted twice.
    if request.baselines and rank.rank == 0:
        name = metric_set_for(workspace, manifest).gate_baseline
        with rank.ledger.span("evaluate.baseline"):
            heartbeat = Heartbeat(rank.ledger, "evaluate.baseline")
            baseline = fitted_baseline(workspace, manifest, reader, on_shard=heartbeat)
            baselines[name] = score_all(scorer, range(scorer.num_blocks), baseline, on_block=heartbeat)
            for name, simple_model in _simple_models(workspace, manifest, request, heartbeat):
                baselines[name] = score_all(scorer, range(scorer.num_blocks), simple_model, on_block=heartbeat)
    part = {"format_version": 2, "num_blocks": scorer.num_blocks, "blocks": blocks, "baselines": baselines}
    if details is None or out is None:
        return part
    with rank.ledger.span("evaluate.details"):
        heartbeat = Heartbeat(rank.ledger, "evaluate.details")
        tensors = {} if capture is None else capture.tensors()
        # On one rank, for both are bounded: sharing them out would cost more than they do.
        texts = []
        if rank.rank == 0:
            spec = training_spec(run)
            trained = spec.max_steps * spec.global_batch_sequences
            tensors |= _importance(workspace, manifest, reader, predict, details, trained, heartbeat)
            texts = _continuations(workspace, manifest, reader, model, predict, details, heartbeat)
        data = save(tensors)
        Workspace(str(out)).publish(tensors_name(rank.rank), data)
    reason = "" if capture is None else capture.reason
    return part | {"details": {"tensors_sha256": sha256_bytes(data), "reason": reason, "continuations": texts}}


def _capture(
    workspace: Workspace,
    manifest: ShardManifest,
    reader: ShardReader,
    block_rows: int,
    predict: Predict,
    model: nn.Module,
) -> OutputCapture | None:
    """None of text, whose logits are too many to keep."""
    from headway.training.engine.run_documents import data_shape

    predicts = metric_set_for(workspace, manifest).predicts
    if predicts == "tokens":
        return None
    shape = data_shape(manifest, workspace.load(manifest.fitted, FittedState))
    num_classes = getattr(shape, "num_classes", 0) if predicts == "class" else 0
    return OutputCapture(predict, model, num_classes, block_rows, stride_of(reader.num_rows, num_classes))


def _importance(
    workspace: Workspace,
    manifest: ShardManifest,
    reader: ShardReader,
    predict: Predict,
    details: DetailsRequest,
    num_trained_rows: int,
    heartbeat: Heartbeat,
) -> dict[str, NDArray[Any]]:
    from headway.training.engine.run_documents import data_shape

    shape = data_shape(manifest, workspace.load(manifest.fitted, FittedState))
    if not details.importance or not isinstance(shape, TabularShape | TabularNumberShape):
        return {}
    blocks = tuple(column.name for column in manifest.columns if column.name in ("numeric", "categorical"))
    return permutation_importance(
        reader, blocks, predict, num_trained_rows=num_trained_rows, seed=details.seed, on_part=heartbeat
    )


def _continuations(
    workspace: Workspace,
    manifest: ShardManifest,
    reader: ShardReader,
    model: nn.Module,
    predict: Predict,
    details: DetailsRequest,
    heartbeat: Heartbeat,
) -> list[dict[str, Any]]:
    """Of text in byte-pairs of ours: other tokens nobody can read."""
    if not details.continuations or manifest.spec["encoder"]["kind"] != "byte-pair":
        return []
    table = token_bytes(fitted_file(workspace, workspace.load(manifest.fitted, FittedState), TOKENIZER_FILE))
    count, seed = details.continuations, details.seed
    return continuations(reader, model, predict, table, count=count, seed=seed, on_part=heartbeat)


LINEAR, TREES = "linear model", "boosted trees"


def _simple_models(
    workspace: Workspace, manifest: ShardManifest, request: EvaluationRequest, heartbeat: Heartbeat
) -> Iterator[tuple[str, Predict]]:
    """Of pictures, and of a table that comes in numbers and categories, by name; none of other rows."""
    from headway.training.engine.run_documents import data_shape

    shape = data_shape(manifest, workspace.load(manifest.fitted, FittedState))
    if not isinstance(shape, TabularShape | TabularNumberShape | ImageShape):
        return
    from headway.training.evaluation.linear_model import fitted_linear_model

    reader = ShardReader(workspace, manifest, TRAIN, on_shard=heartbeat)
    yield LINEAR, fitted_linear_model(reader, shape, on_part=heartbeat)
    if request.boosted_trees and not isinstance(shape, ImageShape):
        from headway.training.evaluation.boosted_trees import fitted_trees

        yield TREES, fitted_trees(reader, shape)


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
    parser.add_argument("--details", metavar="FILE", type=Path)
    arguments, _ = parser.parse_known_args()  # a gang passes --run-spec and --run-dir to all
    rank = arm(arguments.out / "attempt")
    with rank.outcome(), rank.expendable():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        try:
            request = EvaluationRequest.model_validate_json(read_regular(arguments.request))
            given = None if arguments.details is None else read_regular(arguments.details)
            details = None if given is None else DetailsRequest.model_validate_json(given)
        except (OSError, ValidationError) as error:
            raise ConfigError(f"not an evaluation request ({error}).", where=str(arguments.request)) from error
        part = evaluate_share(rank, Workspace(arguments.workspace), request, details, arguments.out)
        Workspace(str(arguments.out)).publish(part_name(rank.rank), canonical_json(part))
    leave()


if __name__ == "__main__":
    main()
