"""The simple models that a first one must beat, fitted on the whole training split: mean, class prior, bigram."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import FittedState, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.encoder_specs import ENCODER_SPEC, CustomEncoderSpec, TokenIdsSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.shards import TRAIN
from headway.training.data.encode.data_shape import data_shape, token_shape
from headway.training.data.encode.packing import PAD_ID
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import LABEL, TOKENS, metric_set_for
from headway.training.evaluation.scorers import Columns, Measured, Predict, token_sizes_bytes


def fitted_baseline(
    workspace: Workspace, manifest: ShardManifest, heldout: ShardReader, *, on_shard: Callable[[], None] = lambda: None
) -> Predict:
    """The simple model of this kind of data."""
    metric_set = metric_set_for(workspace, manifest)
    column = TOKENS if metric_set.predicts == "tokens" else LABEL
    # Only the column to predict: a baseline knows nothing else.
    training = _all_of(ShardReader(workspace, manifest, TRAIN, (column,), on_shard=on_shard), column)
    if metric_set.predicts == "tokens":
        bigram = Bigram(training, vocab_size_of(workspace, manifest))
        return lambda columns: {"nats": bigram.nats(columns[TOKENS])}
    if metric_set.predicts == "number":
        return mean_of(training)
    return prior_of(training, _all_of(heldout, LABEL))


def _all_of(reader: ShardReader, column: str) -> NDArray[Any]:
    return reader.gather(np.arange(reader.num_rows))[column]


def vocab_size_of(workspace: Workspace, manifest: ShardManifest) -> int:
    """Tokens that there may be: as many as the tokenizer has, which may be fewer than it was allowed."""
    encoder = ENCODER_SPEC.validate_python(manifest.spec["encoder"])
    if isinstance(encoder, TokenIdsSpec):
        return token_shape(encoder).vocab_size
    if isinstance(encoder, CustomEncoderSpec):
        shape = data_shape(manifest.spec["encoder"], workspace.load(manifest.fitted, FittedState).statistics)
        return shape.vocab_size if isinstance(shape, TokenShape) else 0
    sizes_bytes = token_sizes_bytes(workspace, manifest)
    return 0 if sizes_bytes is None else len(sizes_bytes)


def prior_of(training: NDArray[Any], heldout: NDArray[Any]) -> Predict:
    """Classes, (rows, 1), are counted in both splits, their shares in the training split alone."""
    # Counted over both splits: a class that only the held-out rows have must not be impossible, at infinite loss.
    prior = ClassPrior(training.reshape(-1), int(max(training.max(), heldout.max())) + 1)

    def predict(columns: Columns) -> Measured:
        return {"nats": prior.nats(columns[LABEL]), "correct": prior.correct(columns[LABEL])}

    return predict


def mean_of(training: NDArray[Any]) -> Predict:
    """Whatever the row, the training split's mean."""
    mean = math.fsum(training.reshape(-1).tolist()) / len(training)
    return lambda columns: {"squared_error": np.square(columns[LABEL].astype(np.float64) - mean)}


Labels = NDArray[np.integer[Any]]


class ClassPrior:
    """Shares of the classes, with one more row of each (Laplace, 1814), so that none is impossible.

    Args:
        labels: of the training split, (rows,).
        num_classes: how many there may be.
    """

    def __init__(self, labels: Labels, num_classes: int) -> None:
        counts = np.bincount(labels, minlength=num_classes) + 1.0
        self._nats = -np.log(counts / counts.sum())

    def nats(self, labels: Labels) -> NDArray[np.float64]:
        """What each class costs, in the shape of `labels`."""
        return np.asarray(self._nats[labels], dtype=np.float64)

    def correct(self, labels: Labels) -> NDArray[np.float64]:
        """1 where the class is the commonest one, of equally common ones the first; else 0."""
        return np.asarray(labels == self._nats.argmin(), dtype=np.float64)


Tokens = NDArray[np.integer]


class Bigram:
    """An interpolated Kneser-Ney bigram over tokens, fitted on packed rows.

    Absolute discount D = n1 / (n1 + 2 n2); the discounted mass goes to each token in proportion to how many different
    tokens it follows (Kneser and Ney, 1995; Ney, Essen and Kneser, 1994).

    Args:
        rows: tokens, shape (rows, context + 1); a row's pairs are its neighbours, padding left out.
    """

    def __init__(self, rows: Tokens, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # A pair as one number: unique numbers are counted much faster than unique rows.
        self._pairs, self._counts = np.unique(self._pair_numbers(rows, rows[:, 1:] != PAD_ID), return_counts=True)
        first, second = np.divmod(self._pairs, vocab_size)
        singles, doubles = int((self._counts == 1).sum()), int((self._counts == 2).sum())
        # At least 1: a tiny split may have no pair that occurs once or twice.
        self._discount = singles / max(1, singles + 2 * doubles)
        self._num_followers = np.bincount(first, minlength=vocab_size)
        self._num_first = np.bincount(first, weights=self._counts, minlength=vocab_size)
        # One more predecessor for each token, so that none is impossible.
        predecessors = np.bincount(second, minlength=vocab_size) + 1.0
        self._lower_order = predecessors / predecessors.sum()

    def nats(self, rows: Tokens) -> NDArray[np.float64]:
        """Loss of every target, (rows, context); 0 at padding."""
        valid = rows[:, 1:] != PAD_ID
        pairs = self._pair_numbers(rows, valid)
        first, second = np.divmod(pairs, self._vocab_size)
        # A pair that never occurred falls on a neighbour, which the next line notices.
        place = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        counts = np.where(self._pairs[place] == pairs, self._counts[place], 0)
        num_first = self._num_first[first]
        kept = np.maximum(counts - self._discount, 0.0) / np.maximum(num_first, 1.0)
        freed = self._discount * self._num_followers[first] / np.maximum(num_first, 1.0)
        # A token that was never first leaves all of its mass to the lower order.
        probability = kept + np.where(num_first > 0, freed, 1.0) * self._lower_order[second]
        losses = np.zeros(valid.shape)
        losses[valid] = -np.log(probability)
        return losses

    def _pair_numbers(self, rows: Tokens, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        tokens = rows.astype(np.int64)
        return (tokens[:, :-1] * self._vocab_size + tokens[:, 1:])[valid]
