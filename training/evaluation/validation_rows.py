"""What a model pays on the rows that validate a run, in blocks whose sums any rank may compute.

Which rows make a block the manifest and the configuration alone decide, and a block's sums are of its own rows. Added
up exactly (`math.fsum`), they are the same figure however many ranks shared them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shards import VALIDATION
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.encode.packing import PAD_ID
from headway.training.data.load.device_copy import as_if_alone, to_tensors
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import metric_set_for, validating_measure
from headway.training.evaluation.scorers import Columns, Measured, token_sizes_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GATHERED_BYTES = 1 << 20
"""Of rows in one gather, whose fixed costs would otherwise be a small model's forward pass."""
KEPT_BYTES = 64 << 20
"""Of a rank's rows that stay in memory, where the model computes, from one validation to the next."""


class Block(NamedTuple):
    """Rows that a model looks at at once."""

    columns: Columns
    batch: dict[str, Tensor]
    """The same, where the model computes."""


def held_bytes(blocks: Sequence[Block]) -> int:
    """In memory for as long as any of these is: a block may be a part of what they were gathered in."""
    wholes = [_whole(each) for block in blocks for each in block.columns.values()]
    storages = [each.untyped_storage() for block in blocks for each in block.batch.values()]
    of_columns = {id(each): each.nbytes for each in wholes}
    of_batches = {each.data_ptr(): each.nbytes() for each in storages}
    return sum(of_columns.values()) + sum(of_batches.values())


def _whole(view: NDArray[Any]) -> NDArray[Any]:
    return _whole(view.base) if isinstance(view.base, np.ndarray) else view


def _versions(blocks: Sequence[Block]) -> list[int]:
    """Torch counts up where somebody writes into a tensor."""
    return [each._version for block in blocks for each in block.batch.values()]


class ValidationRows:
    """The rows of the validation split, in blocks.

    Args:
        block_rows: rows that a model looks at at once.
        max_rows: of all, at most; None: the whole split.

    Raises:
        ConfigError: as `validating_measure`, or the shards have no such split.
        IntegrityError: a shard differs from its manifest.
    """

    def __init__(
        self,
        workspace: Workspace,
        manifest: ShardManifest,
        reader: ShardReader,
        *,
        metric: str | None,
        block_rows: int,
        max_rows: int | None,
    ) -> None:
        assert reader.split == VALIDATION, reader.split
        metric_set = metric_set_for(workspace, manifest)
        self.measure = validating_measure(metric_set, metric)
        self.names = (self.measure.numerator, self.measure.denominator)
        self._reader, self._predicts_tokens = reader, metric_set.predicts == "tokens"
        self._sizes_bytes = token_sizes_bytes(workspace, manifest) if "bytes" in self.names else None
        self.num_rows = min(reader.num_rows, max_rows or reader.num_rows)
        # Spread over the split: its first rows are of its first group alone.
        chosen = np.arange(self.num_rows) * reader.num_rows // self.num_rows
        self._blocks = np.split(chosen, range(block_rows, self.num_rows, block_rows))
        self._at_once = max(1, GATHERED_BYTES // (block_rows * max(1, reader.row_bytes)))
        self._kept: dict[tuple[int, ...], list[Block]] = {}
        self._kept_bytes = 0

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def blocks(self, numbers: Sequence[int], device: torch.device) -> Iterator[Block]:
        """These blocks, one after another; asked for again, the first of them are still in memory."""
        for start in range(0, len(numbers), self._at_once):
            some = tuple(numbers[start : start + self._at_once])
            if (blocks := self._kept.get(some)) is None:
                blocks = self._gathered(some, device)
                size_bytes = held_bytes(blocks)
                if self._kept_bytes + size_bytes <= KEPT_BYTES:
                    self._kept[some] = blocks
                    self._kept_bytes += size_bytes
            before = _versions(blocks)
            try:
                yield from blocks
            finally:
                # A recipe that writes into its batch has fresh rows each time, as in an evaluation.
                if _versions(blocks) != before and self._kept.pop(some, None) is not None:
                    self._kept_bytes -= held_bytes(blocks)

    def _gathered(self, numbers: Sequence[int], device: torch.device) -> list[Block]:
        rows = [self._blocks[number] for number in numbers]
        columns = self._reader.gather(np.concatenate(rows))
        batch = to_tensors(columns, device)
        stops = np.cumsum([len(each) for each in rows]).tolist()
        return [
            Block(
                {name: values[stop - len(each) : stop] for name, values in columns.items()},
                {name: as_if_alone(values[stop - len(each) : stop]) for name, values in batch.items()},
            )
            for each, stop in zip(rows, stops, strict=True)
        ]

    def sums(self, columns: Columns, measured: Measured) -> tuple[float, float]:
        """Numerator and denominator of the figure over a block's rows."""
        known = self._of_tokens(columns, measured) if self._predicts_tokens else self._of_rows(measured)
        numerator, denominator = (float(known[name]) for name in self.names)
        return numerator, denominator

    def value(self, sums: Sequence[tuple[float, float]]) -> float:
        """The figure over all blocks, in whatever order they come."""
        numerators, denominators = zip(*sums, strict=True)
        total = math.fsum(denominators)
        return self.measure.of_ratio(math.fsum(numerators) / self.measure.divisor / total) if total else math.nan

    def _of_tokens(self, columns: Columns, measured: Measured) -> Mapping[str, float]:
        targets = columns["tokens"][:, 1:]
        valid = targets != PAD_ID
        sizes = self._sizes_bytes
        return {
            "nats": measured["nats"][valid].sum(),
            "targets": valid.sum(),
            **({} if sizes is None else {"bytes": sizes[targets[valid]].sum()}),
        }

    def _of_rows(self, measured: Measured) -> Mapping[str, float]:
        sums = {name: values.sum() for name, values in measured.items()}
        return {**sums, "targets": float(next(iter(measured.values())).size)}


def validation_rows(
    workspace: Workspace, manifest: ShardManifest, training: TrainingSpec, on_shard: Callable[[], None]
) -> ValidationRows | None:
    """What a run is validated on; None where it is not. Raises as `ValidationRows`.

    Args:
        on_shard: called after each shard is fetched or verified.
    """
    spec = training.validation
    if spec is None:
        return None
    return ValidationRows(
        workspace,
        manifest,
        ShardReader(workspace, manifest, VALIDATION, on_shard=on_shard),
        metric=spec.metric,
        # What fits with gradients fits without, and decides bits already.
        block_rows=training.micro_batch_sequences,
        max_rows=spec.max_rows,
    )
