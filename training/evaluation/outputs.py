"""What a model said of each held-out row, beside its scores: kept as tensors, within bounds, in the order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from headway.training.evaluation.measures import LABEL
from headway.training.evaluation.scorers import Columns, Measured, Predict

if TYPE_CHECKING:
    from torch import nn

MAX_PROBABILITIES = 1 << 22
"""That are kept of a split, at most: 16 MB. Where there are more, those of every n-th row."""
TOLERANCE = 1e-3
"""Relative: between what a recipe measures and what follows from its model's output."""
OTHER_OUTPUT = "what the model gives is not what its recipe measures it by"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """A row of the split each, in their order."""

    label: NDArray[Any]
    """(rows,): the class as a whole number, int64, or the number, float64."""
    predicted: NDArray[Any]
    """(rows,): the likeliest class, int64, or the number that the model says, float64."""
    confidence: NDArray[np.float32] | None = None
    """(rows,): the probability of the likeliest class; None of numbers."""
    probability_rows: NDArray[np.int64] | None = None
    """(kept,): which rows `probability` is of."""
    probability: NDArray[np.float32] | None = None
    """(kept, classes)."""

    def only(self, chosen: Sequence[int]) -> Outputs:
        """Of some of the rows, in that order."""
        if self.probability_rows is None or self.probability is None:
            return Outputs(label=self.label[chosen], predicted=self.predicted[chosen])
        assert self.confidence is not None
        places = np.full(len(self.label), -1)
        places[chosen] = np.arange(len(chosen))
        kept = places[self.probability_rows]
        order = np.argsort(kept[kept >= 0], kind="stable")
        return Outputs(
            label=self.label[chosen],
            predicted=self.predicted[chosen],
            confidence=self.confidence[chosen],
            probability_rows=kept[kept >= 0][order],
            probability=self.probability[kept >= 0][order],
        )

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        from safetensors.numpy import save

        tensors = {name: getattr(self, name) for name in self.__slots__}
        return bytes(save({name: np.ascontiguousarray(each) for name, each in tensors.items() if each is not None}))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises `ValueError`: these are not such a file's bytes."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return cls(**load(data))
        except (SafetensorError, TypeError) as error:
            raise ValueError(f"no outputs of a model ({error})") from error


@dataclass
class OutputCapture:
    """A `Predict` that also keeps what the model itself gave while its recipe measured it, if that fits the measures.

    So every recipe has outputs, and none is asked for more than it brings.

    Args:
        num_classes: 0: the model says numbers.
        block_rows: in a block.
        stride: probabilities are kept of every row whose number it divides.
    """

    predict: Predict
    model: nn.Module
    num_classes: int
    block_rows: int
    stride: int
    reason: str = ""
    """Why nothing is kept."""
    _kept: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    _rows: list[NDArray[np.int64]] = field(default_factory=list)

    def of_block(self, block: int) -> Predict:
        """For the rows of this block."""

        def predict(columns: Columns) -> Measured:
            with seen_outputs(self.model) as seen:
                measured = self.predict(columns)
            if not self.reason:
                self._keep(block * self.block_rows + np.arange(len(columns[LABEL])), columns, seen, measured)
            return measured

        return predict

    def _keep(self, rows: NDArray[np.int64], columns: Columns, seen: list[Any], measured: Measured) -> None:
        label = columns[LABEL].reshape(-1)
        made = seen[0] if len(seen) == 1 else None
        shape = (len(rows), self.num_classes or 1)
        if made is None or made.ndim > 2 or made.numel() != shape[0] * shape[1]:
            self.reason = OTHER_OUTPUT
            return
        values = made.double().cpu().numpy().reshape(shape)
        if not np.isfinite(values).all():
            self.reason = "what the model gives is not finite everywhere"
            return
        kept = _classes(label, values) if self.num_classes else _numbers(label, values)
        expected = kept.pop("measured")
        paid = measured["nats" if self.num_classes else "squared_error"].reshape(-1)
        if not np.allclose(expected, paid, rtol=TOLERANCE, atol=TOLERANCE):
            self.reason = OTHER_OUTPUT
            return
        if "probability" in kept:
            some = rows % self.stride == 0
            kept |= {"probability_rows": rows[some], "probability": kept["probability"][some]}
        self._rows.append(rows)
        self._kept.append(kept)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """By name, of the rows `row`; empty where there is a reason, or nothing was seen."""
        if self.reason or not self._kept:
            return {}
        names = self._kept[0]
        return {"row": np.concatenate(self._rows)} | {
            name: np.concatenate([each[name] for each in self._kept]) for name in names
        }


def stride_of(num_rows: int, num_classes: int) -> int:
    return max(1, -(-num_rows * num_classes // MAX_PROBABILITIES))


def joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> Outputs:
    """The ranks' tensors as one split's; raises `ValueError` where rows are missing or doubled."""
    parts = [part for part in parts if part]  # a rank may have had no block
    row = np.concatenate([part["row"] for part in parts])
    order = np.argsort(row, kind="stable")
    if not np.array_equal(row[order], np.arange(len(row))):
        raise ValueError("the ranks' outputs do not make up the whole split")
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "row"}
    if "probability" in whole:
        kept = np.argsort(whole["probability_rows"], kind="stable")
        for name in ("probability_rows", "probability"):
            whole[name] = whole[name][kept]
    for name in ("label", "predicted", "confidence"):
        if name in whole:
            whole[name] = whole[name][order]
    return Outputs(**whole)


@contextmanager
def seen_outputs(model: nn.Module) -> Iterator[list[Any]]:
    """What the model returns while the body calls it, in order; `None` for what is no tensor."""
    import torch

    seen: list[Any] = []
    hook = model.register_forward_hook(
        lambda _model, _inputs, made: seen.append(made if isinstance(made, torch.Tensor) else None)
    )
    try:
        yield seen
    finally:
        hook.remove()


def _classes(label: NDArray[Any], logits: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    probability = np.exp(logs)
    predicted = logits.argmax(axis=1)
    rows = np.arange(len(label))
    return {
        "label": label.astype(np.int64),
        "predicted": predicted.astype(np.int64),
        "confidence": probability[rows, predicted].astype(np.float32),
        "probability": probability.astype(np.float32),
        "measured": -logs[rows, label.astype(np.int64)],
    }


def _numbers(label: NDArray[Any], made: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    number, predicted = label.astype(np.float64), made.reshape(-1)
    return {"label": number, "predicted": predicted, "measured": np.square(predicted - number)}
