"""Evaluation: what a checkpoint makes of held-out documents, the same bits on any number of ranks.

Rows are cut into blocks by the manifest alone; ranks share the blocks out and need not meet. Each block's loss is
summed by document; `merge` adds the blocks up exactly (`math.fsum`), in an order that no rank decides.

As a rank: `python -m training.evaluation --workspace URI --request FILE --out DIR`. Importing this costs no torch.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from data_contracts.digests import canonical_json
from data_contracts.documents import FittedState, Frozen, Link, RunSpec, Sha256, ShardManifest
from data_contracts.errors import ConfigError, IntegrityError, TrainingFailed
from data_contracts.publication import Workspace
from training.bigram import Bigram
from training.data.byte_pair import TOKENIZER_FILE, token_bytes
from training.data.encoders import fitted_file
from training.data.loader import ShardReader
from training.data.packing import PAD_ID, document_of_positions
from training.data.spec import HELDOUT, TRAIN
from training.launch.rank import Rank, arm
from training.process_ends import leave, record_imports
from training.pulse import Pulse

if TYPE_CHECKING:
    from torch import nn

    from training.checkpoint.verify import Verified
    from training.recipes.protocol import Recipe

BLOCK_ROWS = 16
Columns = Mapping[str, NDArray[Any]]
Losses = Callable[[Columns], NDArray[np.float64]]
"""From rows by column to nats of every target, (rows, context), 0 at padding."""


class EvaluationRequest(Frozen):
    checkpoint: str
    """The checkpoint's folder."""
    run: Sha256
    manifest: Sha256
    """The shards to evaluate on, encoded by the fitted state that the run was trained with."""
    split: str = HELDOUT
    baselines: bool = True
    """Also score a bigram model, fitted on the manifest's training split."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentScores:
    """Per document, sorted by path: what the model paid, and for how many bytes."""

    documents: tuple[str, ...]
    nats: NDArray[np.float64]
    num_tokens: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    baseline_nats: dict[str, NDArray[np.float64]]
    """The same, for simpler models on the same documents."""

    @property
    def baselines(self) -> dict[str, float]:
        """Bits per byte of the simpler models."""
        size_bytes = int(self.size_bytes.sum())
        return {name: math.fsum(nats.tolist()) / math.log(2) / size_bytes for name, nats in self.baseline_nats.items()}

    @property
    def bits(self) -> NDArray[np.float64]:
        return self.nats / math.log(2)

    @property
    def bits_per_byte(self) -> float:
        return math.fsum(self.nats.tolist()) / math.log(2) / int(self.size_bytes.sum())


class Scorer:
    """Sums losses of a split's rows by document."""

    def __init__(self, reader: ShardReader, manifest: ShardManifest, token_sizes_bytes: NDArray[np.int64]) -> None:
        groups = [group for group in manifest.groups if group.split == reader.split]
        self._reader, self._sizes_bytes = reader, token_sizes_bytes
        self._documents = [path for group in groups for path in group.documents]
        self._last_rows = np.cumsum([group.num_rows for group in groups])
        num_documents = np.array([len(group.documents) for group in groups])
        self._first_documents = np.cumsum(num_documents) - num_documents
        self.num_blocks = -(-reader.num_rows // BLOCK_ROWS)

    def score(self, block: int, losses: Losses) -> dict[str, Any]:
        """One block: by document's path, nats, tokens and bytes of the targets that lie in it."""
        rows = np.arange(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self._reader.num_rows))
        columns = self._reader.gather(rows)
        targets = columns["tokens"][:, 1:]
        first = self._first_documents[np.searchsorted(self._last_rows, rows, side="right")]
        documents = document_of_positions(columns["tokens"], columns["document"])[:, 1:] + first[:, None]
        valid = targets != PAD_ID
        present, place = np.unique(documents[valid], return_inverse=True)
        sums = {
            "nats": np.bincount(place, weights=losses(columns)[valid]).tolist(),
            "tokens": np.bincount(place).tolist(),
            "bytes": np.bincount(place, weights=self._sizes_bytes[targets[valid]]).astype(np.int64).tolist(),
        }
        return {"block": block, "documents": [self._documents[index] for index in present], **sums}

    def score_all(self, blocks: Iterable[int], losses: Losses, *, on_block: Callable[[], None]) -> list[dict[str, Any]]:
        scored = []
        for block in blocks:
            scored.append(self.score(block, losses))
            on_block()
        return scored


def part_name(rank: int) -> str:
    return f"rank-{rank}.json"


def merge(folder: Path, num_ranks: int) -> DocumentScores:
    """Put the ranks' parts together.

    Raises:
        TrainingFailed: a part is missing or unreadable, or blocks are missing or doubled.
    """
    try:
        parts = [json.loads((folder / part_name(rank)).read_bytes()) for rank in range(num_ranks)]
    except (OSError, ValueError) as error:
        raise TrainingFailed(f"a rank left no readable scores ({error}).", where=str(folder)) from error
    num_blocks = int(parts[0]["num_blocks"])
    scores = _by_document([block for part in parts for block in part["blocks"]], num_blocks, folder)
    paths = sorted(scores)
    baseline_nats = {}
    for name, blocks in ((name, blocks) for part in parts for name, blocks in part["baselines"].items()):
        baseline = _by_document(blocks, num_blocks, folder)
        baseline_nats[name] = np.array([baseline[path][0] for path in paths])
    return DocumentScores(
        documents=tuple(paths),
        nats=np.array([scores[path][0] for path in paths]),
        num_tokens=np.array([scores[path][1] for path in paths]),
        size_bytes=np.array([scores[path][2] for path in paths]),
        baseline_nats=baseline_nats,
    )


def _by_document(blocks: list[dict[str, Any]], num_blocks: int, folder: Path) -> dict[str, tuple[float, int, int]]:
    """Nats, tokens and bytes of every document, added up exactly.

    Raises:
        TrainingFailed: blocks are missing or doubled.
    """
    blocks = sorted(blocks, key=lambda block: int(block["block"]))
    if [block["block"] for block in blocks] != list(range(num_blocks)):
        raise TrainingFailed("the ranks' scores do not make up the whole split.", where=str(folder))
    rows: dict[str, list[tuple[float, int, int]]] = {}
    for block in blocks:
        for path, *sums in zip(block["documents"], block["nats"], block["tokens"], block["bytes"], strict=True):
            rows.setdefault(path, []).append((sums[0], sums[1], sums[2]))
    return {
        path: (math.fsum(row[0] for row in its), sum(row[1] for row in its), sum(row[2] for row in its))
        for path, its in rows.items()
    }


def restored_model(
    workspace: Workspace, run: RunSpec, shards: ShardManifest, checkpoint: Verified
) -> tuple[Recipe, nn.Module]:
    """A verified checkpoint's model, in evaluation mode on the CPU, and its recipe.

    Raises:
        ConfigError: the shards were encoded by another fitted state than the run's.
        IntegrityError: the checkpoint is another run's, or does not fit the recipe's model.
    """
    from training.learner import load_model_tensors
    from training.recipes.protocol import load_recipe
    from training.run_documents import data_shape, training_spec

    if shards.fitted != run.fitted:
        raise ConfigError("the shards were encoded by another fitted state than the run's.", where=shards.link.short)
    if checkpoint.manifest.run != run.link:
        raise IntegrityError("it belongs to another run.", where=str(checkpoint.directory))
    spec = training_spec(run)
    shape = data_shape(shards, workspace.load(run.fitted, FittedState))
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, shape)
    model = recipe.build()
    load_model_tensors(model, checkpoint.tensors)
    return recipe, model.eval()


def evaluate_share(rank: Rank, workspace: Workspace, request: EvaluationRequest) -> dict[str, Any]:
    """This rank's blocks. Rank 0 also fits and scores the baselines."""
    from training.checkpoint.verify import load_checkpoint
    from training.distributed import be_deterministic, choose_device
    from training.run_documents import training_spec

    run = workspace.load(Link(kind="run", sha256=request.run), RunSpec)
    manifest = workspace.load(Link(kind="manifest", sha256=request.manifest), ShardManifest)
    with rank.ledger.span("restore"):
        be_deterministic(training_spec(run).num_threads)
        verified = load_checkpoint(Path(request.checkpoint), on_file=Pulse(rank.ledger, "restore"))
        recipe, model = restored_model(workspace, run, manifest, verified)
        model.to(choose_device())
    with rank.ledger.span("data.open"):
        sizes_bytes = token_sizes_bytes(workspace, run.fitted)
        reader = ShardReader(workspace, manifest, request.split, on_shard=Pulse(rank.ledger, "data.open"))
        scorer = Scorer(reader, manifest, sizes_bytes)
    with rank.ledger.span("evaluate.model"):
        own = range(rank.rank, scorer.num_blocks, rank.world_size)
        blocks = scorer.score_all(own, model_losses(recipe, model), on_block=Pulse(rank.ledger, "evaluate.model"))
    baselines = {}
    if request.baselines and rank.rank == 0:
        with rank.ledger.span("evaluate.bigram"):
            baselines["bigram"] = bigram_blocks(
                workspace, manifest, scorer, len(sizes_bytes), on_piece=Pulse(rank.ledger, "evaluate.bigram")
            )
    return {"format_version": 1, "num_blocks": scorer.num_blocks, "blocks": blocks, "baselines": baselines}


def token_sizes_bytes(workspace: Workspace, fitted: Link) -> NDArray[np.int64]:
    """Bytes that each token stands for, by token id."""
    table = token_bytes(fitted_file(workspace, workspace.load(fitted, FittedState), TOKENIZER_FILE))
    return np.array([len(text) for text in table], dtype=np.int64)


def model_losses(recipe: Recipe, model: nn.Module) -> Losses:
    import torch

    from training.batches import to_tensors

    device = next(model.parameters()).device

    def losses(columns: Columns) -> NDArray[np.float64]:
        with torch.inference_mode():
            nats = recipe.token_losses(model, to_tensors(columns, device)).nats
        return nats.double().cpu().numpy()

    return losses


def bigram_blocks(
    workspace: Workspace,
    manifest: ShardManifest,
    scorer: Scorer,
    vocab_size: int,
    *,
    on_piece: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Fit on the whole training split, score on the scorer's."""
    training = ShardReader(workspace, manifest, TRAIN, ("tokens",), on_shard=on_piece)
    bigram = Bigram(training.gather(np.arange(training.num_rows))["tokens"], vocab_size)
    every_block = range(scorer.num_blocks)
    return scorer.score_all(every_block, lambda columns: bigram.nats(columns["tokens"]), on_block=on_piece)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluation", description=__doc__)
    parser.add_argument("--workspace", required=True, metavar="URI")
    parser.add_argument("--request", required=True, metavar="FILE", type=Path)
    parser.add_argument("--out", required=True, metavar="DIR", type=Path)
    arguments, _ = parser.parse_known_args()  # a gang passes --run-spec and --run-dir to all
    rank = arm(arguments.out / "attempt")
    with rank.outcome():
        with record_imports(rank.ledger):
            import torch  # noqa: F401  (named in the time account)
        try:
            request = EvaluationRequest.model_validate_json(arguments.request.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"not an evaluation request ({error}).", where=str(arguments.request)) from error
        part = evaluate_share(rank, Workspace(arguments.workspace), request)
        Workspace(str(arguments.out)).publish(part_name(rank.rank), canonical_json(part))
    leave()


if __name__ == "__main__":
    main()
