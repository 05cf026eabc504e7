"""What grows trees, behind the calls of `Learner`: each step is an iteration of gradient boosting (Friedman, 2001).

A step reads the whole training split, on one rank. All of its state is the model's tensors: what the trees say of the
training rows is added up again where a run is continued, tree by tree, and has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.checkpoint.pieces import State
from headway.training.checkpoint.proof import proof_loss
from headway.training.config.seeds import derive
from headway.training.config.shapes import GAUSSIAN_NATS, TabularNumberShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.load.device_copy import to_tensors
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.splitmix import splitmix64
from headway.training.engine.learner import Sums, model_tensors
from headway.training.engine.tree_growing import BinnedRows
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.gradient_boosting import BoostedTrees, GradientBoosting, split_by_ids
from headway.training.recipes.protocol import Recipe

MAX_CELLS = 1 << 28
"""Numbers and ids of all training rows: binning holds them at 8 bytes, beside 4 and 1."""
ROWS_AT_A_TIME = 1 << 16
OF_NODES = ("value", "feature", "threshold", "missing_goes_right", "child", "left_ids")
"""Tensors of the model that a tree is written into, and fields of `GrownTree`."""
CONVERGED = "converged"

Numbers = NDArray[np.float64]


class BoostedLearner:
    """Trees in growth, on the rows that `reader` reads.

    Args:
        on_part: called now and then while rows are made ready.

    Raises:
        ConfigError: more rows and columns than are held in memory.
    """

    share = BatchShare(0, 1)

    def __init__(
        self,
        recipe: GradientBoosting,
        spec: TrainingSpec,
        process_group: ProcessGroup,
        reader: ShardReader,
        *,
        on_part: Callable[[], None] = lambda: None,
    ) -> None:
        self._recipe, self._fields, self._shape = recipe, recipe.spec, recipe.shape
        self._max_steps = spec.max_steps
        self.traffic, self._device = process_group.traffic, process_group.device
        self.model = cast(BoostedTrees, recipe.build().to(self._device).eval())
        self._records, label = _rows(recipe, reader, on_part)
        self._is_validation = _validation_rows(self._records, recipe, derive(spec.seed, "validation"))
        self._losses = _Losses(self._shape.deviation if isinstance(self._shape, TabularNumberShape) else None)
        self._label, self._validation_label = label[~self._is_validation], label[self._is_validation]
        on_part()
        self._binned = BinnedRows(
            self._records[~self._is_validation],
            split_by_ids(self._fields, self._shape),
            self.model.num_words,
            self._fields,
            seed=derive(spec.seed, "bins"),
            num_threads=spec.num_threads,
        )
        on_part()
        self.model.baseline.copy_(torch.from_numpy(self._losses.baseline(self._label, self.model.num_outputs)))
        self._begin()

    @property
    def has_converged(self) -> bool:
        """Whether the loss of the validation rows has stopped falling: no step is to follow."""
        best = int(np.argmin(self._validation)) if self._validation else -1
        return self._is_cut or len(self._validation) - 1 - best >= self._fields.patience

    noise_scale = None
    """Every iteration looks at all rows: there is no smaller batch."""

    def backward(self, step: int, micro_batches: Sequence[Batch], num_replicas: int | None = None) -> Tensor:
        """The gradient of the training rows' loss by what is predicted. Returns nats and rows, float64 (1, 2)."""
        self._gradients, self._hessians = self._losses.gradients(self._raw, self._label)
        nats = self._losses.nats(self._raw, self._label).sum()
        return torch.tensor([[nats, len(self._label)]], dtype=torch.float64)

    def exchange(self, own: Tensor, *, stop: bool, save: bool = False) -> Sums:
        nats, num_rows = own[0].tolist()
        return Sums(nats=nats, num_tokens=int(num_rows), stop=stop, save=save)

    def gradient_norm(self, sums: Sums) -> float:
        """Of the mean loss's gradient by what is predicted of each row."""
        return float(np.sqrt(np.square(self._gradients, dtype=np.float64).sum())) / max(1, sums.num_tokens)

    def overflowed(self, sums: Sums, gradient_norm: float) -> bool:
        return False

    def update(self, step: int, sums: Sums, gradient_norm: float) -> float:
        """Grow this iteration's trees. Returns the share of each that is added."""
        iteration = int(self.model.num_iterations)
        for output in range(self.model.num_outputs):
            hessians = self._hessians[:, output] if self._hessians.ndim == 2 else self._hessians
            tree = self._binned.grow(self._gradients[:, output], hessians)
            self._raw[:, output] += tree.added
            size = len(tree.value)
            for name in OF_NODES:
                getattr(self.model, name)[iteration, output, :size].copy_(torch.from_numpy(getattr(tree, name)))
            self.model.num_levels.fill_(max(int(self.model.num_levels), tree.num_levels))
        self.model.num_iterations.fill_(iteration + 1)
        self._validate(iteration)
        if self._validation and (self.has_converged or step + 1 == self._max_steps):
            self._cut()
        return self._fields.learning_rate

    def discard(self) -> None:
        """Nothing was grown yet."""

    @property
    def num_parameters(self) -> int:
        """Values of leaves, those that are not grown included."""
        return sum(value.numel() for value in self.model.parameters())

    def parts_s(self) -> Mapping[str, float]:
        return {"forward": 0.0, "sync": 0.0}

    def tensors(self) -> State:
        return self.weights()

    def weights(self) -> State:
        return {f"model.{name}": value.detach() for name, value in model_tensors(self.model).items()}

    def moments(self) -> State:
        return {}

    def begin_from_model(self) -> None:
        """Its trees are the model."""

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in sorted(self.weights().items()):
            yield name, cast(Tensor, value)

    def scalars(self) -> dict[str, float]:
        return {CONVERGED: int(self._is_cut)}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float | int | str]) -> None:
        """Take over trees, and add up what they say of the training rows.

        Raises:
            IntegrityError: a tensor or a scalar is missing, a tensor has another shape, or there are more trees than
                there can be.
        """
        own = {name: cast(Tensor, value) for name, value in self.weights().items()}
        for name in sorted(own.keys() | tensors.keys()):
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
                raise IntegrityError(f"tensor {name} does not fit the configuration.", where="checkpoint")
        if CONVERGED not in scalars:
            raise IntegrityError(f"scalar {CONVERGED} is missing.", where="checkpoint")
        for name, value in own.items():
            value.copy_(tensors[name])
        self.model.eval()  # looks at how many there are
        self._begin()
        for iteration in range(int(self.model.num_iterations)):
            self._raw += self._predicted(self._records[~self._is_validation], iteration)
            self._validate(iteration)
        self._is_cut = bool(scalars[CONVERGED])

    def proof_loss(self, batch: Batch) -> float:
        return proof_loss(cast(Recipe, self._recipe), self.model, batch)

    def _begin(self) -> None:
        baseline = self.model.baseline.detach().cpu().numpy()
        # By column, as they are added to; float64, as scikit-learn adds them.
        self._raw = np.tile(baseline, (len(self._label), 1)).copy(order="F")
        self._validation_raw = np.tile(baseline, (len(self._validation_label), 1)).copy(order="F")
        self._validation: list[float] = []
        self._is_cut = False

    def _validate(self, iteration: int) -> None:
        """Write down the validation rows' loss, where there are such rows."""
        if len(self._validation_label):
            self._validation_raw += self._predicted(self._records[self._is_validation], iteration)
            self._validation.append(float(self._losses.nats(self._validation_raw, self._validation_label).mean()))

    def _predicted(self, records: NDArray[np.float32], iteration: int) -> Numbers:
        """What an iteration's trees say of these rows, (rows, outputs)."""
        self.model.eval()  # looks up how many levels there are
        parts = []
        with torch.inference_mode():
            for first in range(0, len(records), ROWS_AT_A_TIME):
                part = torch.from_numpy(records[first : first + ROWS_AT_A_TIME]).to(self._device)
                parts.append(self.model.of_iterations(part, iteration, iteration + 1)[:, 0].cpu().numpy())
        return np.concatenate(parts)

    def _cut(self) -> None:
        """Forget the trees that came after the lowest loss."""
        kept = int(np.argmin(self._validation)) + 1
        fresh = self._recipe.build()
        for name in OF_NODES:
            getattr(self.model, name)[kept:].copy_(getattr(fresh, name)[kept:])
        self.model.num_iterations.fill_(kept)
        self._is_cut = True


def _rows(
    recipe: GradientBoosting, reader: ShardReader, on_part: Callable[[], None]
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Records (rows, columns) and labels (rows,) of the whole split."""
    num_columns = recipe.shape.num_numeric + len(recipe.shape.cardinalities)
    if (num_cells := reader.num_rows * num_columns) > MAX_CELLS:
        raise ConfigError(
            f"{reader.num_rows:,} training rows of {num_columns} columns are {num_cells:,} values; trees are grown of "
            f"{MAX_CELLS:,} at most, which are held in memory.",
            where="training.recipe.name",
            advice="Use tabular-classifier or tabular-regressor, which read a batch at a time, or fewer columns.",
        )
    records, labels = [], []
    for first in range(0, reader.num_rows, ROWS_AT_A_TIME):
        columns = reader.gather(np.arange(first, min(first + ROWS_AT_A_TIME, reader.num_rows)))
        records.append(recipe.inputs(to_tensors(columns, torch.device("cpu"))).numpy())
        labels.append(columns["label"].reshape(-1))
        on_part()
    return np.concatenate(records), np.concatenate(labels)


def _validation_rows(records: NDArray[np.float32], recipe: GradientBoosting, seed: int) -> NDArray[np.bool_]:
    """Rows whose loss says when to end: by a hash of their inputs, so that equal rows are on one side."""
    nobody = np.zeros(len(records), dtype=bool)
    if not recipe.spec.early_stopping:
        return nobody
    states = np.full(len(records), seed & ((1 << 63) - 1), dtype=np.uint64)
    for column in np.ascontiguousarray(records).view(np.uint32).T:
        states = splitmix64(states ^ column.astype(np.uint64))
    chosen = states >> np.uint64(11) < np.uint64(round(recipe.spec.validation_fraction * 2**53))
    return chosen if chosen.sum() >= recipe.spec.min_validation_rows else nobody


class _Losses:
    """Of what is predicted, (rows, outputs) float64, and labels (rows,), with its first and second derivatives.

    Args:
        deviation: of the number to predict; None of a class.
    """

    def __init__(self, deviation: float | None) -> None:
        self._deviation = deviation

    def baseline(self, label: NDArray[Any], num_outputs: int) -> Numbers:
        """The best that says the same of all rows."""
        if self._deviation is not None:
            return np.array([label.mean(dtype=np.float64)])
        shares = np.bincount(label, minlength=max(2, num_outputs)) / len(label)
        # A class that has no row here is not impossible.
        logs = np.log(np.maximum(shares, np.finfo(np.float64).eps))
        made: Numbers = logs - logs.mean() if num_outputs > 1 else logs[1:] - logs[:1]
        return made

    def nats(self, raw: Numbers, label: NDArray[Any]) -> Numbers:
        """(rows,), in the unit in which recipes of networks state them."""
        if self._deviation is not None:
            nats: Numbers = np.square((raw[:, 0] - label) / self._deviation) / 2 + GAUSSIAN_NATS
        elif raw.shape[1] == 1:
            nats = np.logaddexp(0.0, raw[:, 0]) - label * raw[:, 0]
        else:
            nats = np.logaddexp.reduce(raw, axis=1) - raw[np.arange(len(label)), label]
        return nats

    def gradients(self, raw: Numbers, label: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(rows, outputs) each, by column; of a number the second is 1 for all rows."""
        if self._deviation is not None:
            return _by_column(raw - label[:, None]), np.ones(1, dtype=np.float32)
        if raw.shape[1] == 1:
            shares = 1 / (1 + np.exp(-raw))
            return _by_column(shares - label[:, None]), _by_column(shares * (1 - shares))
        shares = np.exp(raw - np.logaddexp.reduce(raw, axis=1)[:, None])
        return _by_column(shares - np.eye(raw.shape[1])[label]), _by_column(shares * (1 - shares))


def _by_column(values: Numbers) -> NDArray[np.float32]:
    return np.asfortranarray(values, dtype=np.float32)
