"""What a plan says of a rank's memory is counted from tensors that lie in a checkpoint; and what is not resumed."""

from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.store.documents import Registration, TensorSlice
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.context import RunContext
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.stages.launch import continue_run, describe_run, state_bytes
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.optimizer import EmaSpec
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
    training = TrainingSpec(ema=EmaSpec() if has_average else None)
    assert state_bytes(layout(*tensors), training) == copies * 40


@pytest.mark.parametrize(
    ("sync", "world_size", "copies"),
    [
        ({}, 4, 6),
        ({}, 8, 6),
        ({"outer": {"momentum": 0.9}}, 4, 7),
        ({"delay_steps": 1}, 4, 7),
        ({"movements": "int8"}, 4, 8),
        ({}, 2, 9),
        ({"outer": {"momentum": 0.9}, "delay_steps": 1}, 1, 20),
    ],
)
def test_an_island_has_weights_and_moments_of_its_own_whatever_the_last_run_had(sync, world_size, copies):
    whole = TrainingSpec(
        global_batch_sequences=8, micro_batch_sequences=1, sync=SyncSpec.model_validate({"every_steps": 4, **sync})
    )
    training = whole.for_one_of(world_size)
    moments = [
        piece.model_copy(update={"global_shape": (4, 10), "offsets": (0, *piece.offsets), "shape": (4, *piece.shape)})
        for piece in layout(MEAN, SQUARE)
    ]
    assert state_bytes([*layout(MODEL), *moments], training) == copies * 40
    assert state_bytes(layout(MODEL, MEAN, SQUARE), training) == copies * 40


def test_the_personal_weights_of_every_client_lie_on_each_rank() -> None:
    sync = SyncSpec.model_validate({"every_steps": 4, "federated": {"personal": ["a"]}})
    training = TrainingSpec(global_batch_sequences=8, micro_batch_sequences=1, sync=sync)
    tables = [
        piece.model_copy(update={"global_shape": (9, 10), "offsets": (0, *piece.offsets), "shape": (9, *piece.shape)})
        for piece in layout("clients.weights.a")
    ]
    assert state_bytes([*layout(MODEL), *tables], training) == state_bytes(layout(MODEL), training) + 9 * 40


def test_fewer_clients_than_a_round_draws_are_refused_before_a_rank_starts(context: RunContext, register: Any) -> None:
    registration = context.workspace.load(register(1)[0], Registration)
    manifest = read_candidate(context.workspace, registration.checkpoint).run.manifest
    sync = SyncSpec.model_validate({"every_steps": 4, "federated": {}})
    training = TrainingSpec(global_batch_sequences=8, micro_batch_sequences=1, sync=sync)
    with pytest.raises(ConfigError, match="4 clients are drawn for each round, and there are 0:"):
        describe_run(context, training, manifest)


@pytest.mark.process
def test_a_run_of_before_is_not_resumed_where_nothing_tells_which_of_its_rows_have_chosen_models(days: Days) -> None:
    users = [*range(NUM_ROWS)]
    days.write(**columns(user=users))
    by_user = shards_spec(TABLE, split_by="key", split_key="user")
    cut = days.workspace.publish_document(days.run(by_user))
    remember_ranking(days.context, 0.5, by_user, {"user": "string"})
    with pytest.raises(ConfigError, match=r"'user' \(of string\) cannot be told any more.*of whole numbers now"):
        continue_run.fn(days.context, TrainingSpec(), LaunchSpec(), cut, "")
