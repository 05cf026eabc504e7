"""What a plan says of a rank's memory is counted from tensors that lie in a checkpoint."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import TensorSlice
from headway.tasks.stages.launch import state_bytes

MODEL, MEAN, SQUARE, TRAINED = ("model.a", "optimizer.mean.a", "optimizer.mean_square.a", "trained.a")


def layout(*tensors: str) -> list[TensorSlice]:
    """Of ten values each, in two slices."""
    return [
        TensorSlice(tensor=name, file="", dtype="float32", global_shape=(10,), offsets=(start,), shape=(size,))
        for name in tensors
        for start, size in ((0, 6), (6, 4))
    ]


@pytest.mark.parametrize(
    ("tensors", "has_average", "copies"),
    [
        ((MODEL, MEAN, SQUARE), False, 4),
        ((MODEL, MEAN, SQUARE), True, 5),
        ((MODEL, MEAN, SQUARE, TRAINED), True, 5),
        ((MODEL, MEAN, SQUARE, TRAINED), False, 4),
        ((MODEL,), False, 2),
    ],
)
def test_weights_gradients_moments_and_an_average_count_whatever_the_last_run_had(tensors, has_average, copies):
    assert state_bytes(layout(*tensors), has_average=has_average) == copies * 40
