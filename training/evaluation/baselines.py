"""The simple models that a first one must beat, fitted on the whole training split."""

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
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.bigram import Bigram
from headway.training.evaluation.class_prior import ClassPrior
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
