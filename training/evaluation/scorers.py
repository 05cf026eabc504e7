"""From losses of rows to sums by example, block by block. Which rows make a block, the manifest alone decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import FittedState, ShardGroup, ShardManifest
from headway.data_contracts.store.plain_text import distinct_line
from headway.data_contracts.store.publication import Workspace
from headway.training.config.encoder_specs import ENCODER_SPEC
from headway.training.data.encode.byte_pair import TOKENIZER_FILE, token_bytes
from headway.training.data.encode.custom_encoder import CustomEncoderFacts
from headway.training.data.encode.data_shape import classes_of
from headway.training.data.encode.encoders import fitted_file
from headway.training.data.encode.packing import PAD_ID, document_of_positions
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import LABEL, TEXT, metric_set_for

BLOCK_ROWS = 16
MAX_BLOCK_ROWS = 256
BLOCK_BYTES = 1 << 16
"""Of rows of a table or of pictures. Sixteen small ones would keep no processor busy: a block costs most of a call."""
MAX_CLASS_CHARS = 60
"""Of a class in a slice's name."""
Columns = Mapping[str, NDArray[Any]]


Measured = Mapping[str, NDArray[Any]]
"""What a model made of some rows: (rows, targets) each, as the yardstick asks; 0 where no target is."""
Predict = Callable[[Columns], Measured]


class Scorer(Protocol):
    """Sums of one split by example. A block is a JSON value: `block`, `examples`, `slices` and `sums` by name."""

    num_blocks: int
    block_rows: int
    """But for the last one's."""

    def score(self, block: int, predict: Predict) -> dict[str, Any]: ...


def scorer_of(workspace: Workspace, manifest: ShardManifest, reader: ShardReader) -> Scorer:
    """Raises `ConfigError`: nothing in these shards can be evaluated."""
    match metric_set_for(workspace, manifest).predicts:
        case "tokens":
            return DocumentScorer(reader, manifest, token_sizes_bytes(workspace, manifest))
        case "class":
            fitted = workspace.load(manifest.fitted, FittedState)
            spec = ENCODER_SPEC.validate_python(manifest.spec["encoder"])
            return RowScorer(reader, classes_of(spec, fitted.statistics))
        case "number":
            return NumberScorer(reader)


def token_sizes_bytes(workspace: Workspace, manifest: ShardManifest) -> NDArray[np.int64] | None:
    """Bytes that each token stands for, by token id; None of ids that the source gave."""
    if metric_set_for(workspace, manifest) is not TEXT:
        return None
    fitted = workspace.load(manifest.fitted, FittedState)
    if manifest.spec["encoder"]["kind"] == "own":
        return np.array(CustomEncoderFacts.model_validate(fitted.statistics).token_sizes_bytes, dtype=np.int64)
    table = token_bytes(fitted_file(workspace, fitted, TOKENIZER_FILE))
    return np.array([len(text) for text in table], dtype=np.int64)


def score_all(
    scorer: Scorer,
    blocks: Iterable[int],
    predict: Predict,
    *,
    on_block: Callable[[], None],
    of_block: Callable[[int], Predict] | None = None,
) -> list[dict[str, Any]]:
    """
    Args:
        of_block: in place of `predict`, where it has to know the block.
    """
    scored = []
    for block in blocks:
        scored.append(scorer.score(block, predict if of_block is None else of_block(block)))
        on_block()
    return scored


class _Rows:
    """Rows of a split, cut into blocks."""

    def __init__(self, reader: ShardReader, block_rows: int) -> None:
        self._reader, self.block_rows = reader, block_rows
        # Rounded up: the last block may be shorter.
        self.num_blocks = -(-reader.num_rows // block_rows)

    def _rows(self, block: int) -> NDArray[np.int64]:
        first = block * self.block_rows
        return np.arange(first, min(first + self.block_rows, self._reader.num_rows))


class DocumentScorer(_Rows):
    """Packed tokens: an example is a document of the source, a slice its file's top-level folder.

    Args:
        token_sizes_bytes: bytes that each token stands for, by token id; None where nobody knows.
    """

    def __init__(
        self, reader: ShardReader, manifest: ShardManifest, token_sizes_bytes: NDArray[np.int64] | None
    ) -> None:
        # Few, however short: each of a row's tokens has as many logits as there are tokens in all.
        super().__init__(reader, BLOCK_ROWS)
        groups = [group for group in manifest.groups if group.split == reader.split]
        self._sizes_bytes = token_sizes_bytes
        self._documents = [document for group in groups for document in documents_of(group)]
        self._last_rows = np.cumsum([group.num_rows for group in groups])
        num_documents = np.array([group.num_samples for group in groups])
        self._first_documents = np.cumsum(num_documents) - num_documents

    def score(self, block: int, predict: Predict) -> dict[str, Any]:
        """By document: nats and number of the targets that lie in the block, and their bytes where they are known."""
        rows = self._rows(block)
        columns = self._reader.gather(rows)
        targets = columns["tokens"][:, 1:]
        # A row names its document within its group; the group's first document makes that a number of the split.
        first = self._first_documents[np.searchsorted(self._last_rows, rows, side="right")]
        documents = document_of_positions(columns["tokens"], columns["document"])[:, 1:] + first[:, None]
        # Padding fills the last row of a group, and is no target.
        valid = targets != PAD_ID
        present, place = np.unique(documents[valid], return_inverse=True)
        sums = {
            # Summed by document within the block; a document over several blocks is added up by `merge`.
            "nats": np.bincount(place, weights=predict(columns)["nats"][valid]).tolist(),
            "targets": np.bincount(place).tolist(),
        }
        if self._sizes_bytes is not None:
            sizes_bytes = np.bincount(place, weights=self._sizes_bytes[targets[valid]])
            sums["bytes"] = sizes_bytes.astype(np.int64).tolist()
        found = [self._documents[index] for index in present]
        examples, slices = [document.name for document in found], [folder_of(document.path) for document in found]
        return {"block": block, "examples": examples, "slices": slices, "sums": sums}


class HeldoutDocument(NamedTuple):
    name: str
    """The path of its file, and where that holds several, its number among them."""
    path: str


def documents_of(group: ShardGroup) -> Iterator[HeldoutDocument]:
    """The documents of a group, by the number that a row's `document` column gives them."""
    for path, num_documents in zip(group.documents, group.samples_by_document, strict=True):
        for number in range(num_documents):
            yield HeldoutDocument(path if num_documents == 1 else f"{path} #{number:09d}", path)


def places_of_examples(manifest: ShardManifest, split: str, examples: Sequence[str]) -> list[int]:
    """Of examples of packed tokens: which sample of the split each is, as groups count them."""
    groups = (group for group in manifest.groups if group.split == split)
    documents = (document.name for group in groups for document in documents_of(group))
    places = {name: place for place, name in enumerate(documents)}
    return [places[example] for example in examples]


def folder_of(path: str) -> str:
    return f"{path.partition('/')[0]}/" if "/" in path else "(top level)"


def class_names(classes: Sequence[int | str]) -> list[str]:
    """What pages call them; two never look the same."""
    return [f"class {distinct_line(str(name), MAX_CLASS_CHARS)}" for name in classes]


class RowScorer(_Rows):
    """Rows with a class to predict: an example is a row, by its number in the split; a slice is a class.

    Args:
        classes: what the source calls each; by number where nobody knows, as of an encoder of your own.
    """

    def __init__(self, reader: ShardReader, classes: Sequence[int | str] = ()) -> None:
        super().__init__(reader, min(MAX_BLOCK_ROWS, max(BLOCK_ROWS, BLOCK_BYTES // reader.row_bytes)))
        self._names = class_names(classes)

    def score(self, block: int, predict: Predict) -> dict[str, Any]:
        """By row: all that was measured, and 1 target."""
        rows = self._rows(block)
        columns = self._reader.gather(rows)
        sums = {name: values.reshape(-1).tolist() for name, values in predict(columns).items()}
        labels = columns[LABEL].reshape(-1)
        return {
            "block": block,
            "examples": [f"row {row:09d}" for row in rows],
            "slices": self._slices(labels),
            "sums": {**sums, "targets": [1] * len(rows), **self._also(labels)},
        }

    def _slices(self, labels: NDArray[Any]) -> list[str]:
        return [self._names[label] if self._names else f"class {label}" for label in labels.tolist()]

    def _also(self, labels: NDArray[Any]) -> dict[str, list[float]]:
        """Further sums, which the labels alone decide."""
        return {}


class Quarters:
    """Of some rows, by the numbers to predict, from the smallest to the largest."""

    def __init__(self, labels: NDArray[np.float64]) -> None:
        # `fsum`, for equal bits whatever the order of rows.
        self._mean = math.fsum(labels.tolist()) / len(labels)
        # `lower` picks a number that occurs, so that equal labels fall into one quarter.
        self._bounds = np.quantile(labels, [0, 0.25, 0.5, 0.75, 1], method="lower")

    def names(self, labels: NDArray[Any]) -> list[str]:
        quarters = np.searchsorted(self._bounds[1:-1], labels.astype(np.float64), side="left")
        ends = [f"{bound:g}" for bound in self._bounds]
        return [f"quarter {number + 1}: {ends[number]} to {ends[number + 1]}" for number in quarters.tolist()]

    def variation(self, labels: NDArray[Any]) -> NDArray[np.float64]:
        """Squared distances from the mean."""
        return np.square(labels.astype(np.float64) - self._mean)


class NumberScorer(RowScorer):
    """Rows with a number to predict: a slice is a quarter of the split, from the smallest numbers to the largest."""

    def __init__(self, reader: ShardReader) -> None:
        super().__init__(reader)
        # The bounds are of the whole split: quarters must not depend on which rank scores a block.
        labels = reader.gather(np.arange(reader.num_rows))[LABEL].reshape(-1).astype(np.float64)
        self._quarters = Quarters(labels)

    def _slices(self, labels: NDArray[Any]) -> list[str]:
        return self._quarters.names(labels)

    def _also(self, labels: NDArray[Any]) -> dict[str, list[float]]:
        return {"variation": self._quarters.variation(labels).tolist()}
