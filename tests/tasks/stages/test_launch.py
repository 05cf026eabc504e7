"""What a plan says of a rank's memory is counted from tensors that lie in a checkpoint; and what is not resumed."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import TensorSlice
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.stages.launch import continue_run, state_bytes
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.days import NUM_ROWS, TABLE, Days, columns, shards_spec

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


@pytest.mark.process
def test_a_run_of_before_is_not_resumed_where_nothing_tells_which_of_its_rows_have_chosen_models(days: Days) -> None:
    users = [*range(NUM_ROWS)]
    days.write(**columns(user=users))
    by_user = shards_spec(TABLE, split_by="key", split_key="user")
    cut = days.workspace.publish_document(days.run(by_user))
    remember_ranking(days.context, 0.5, by_user, {"user": "string"})
    with pytest.raises(ConfigError, match=r"'user' \(of string\) cannot be told any more.*of whole numbers now"):
        continue_run.fn(days.context, TrainingSpec(), LaunchSpec(), cut, "")
