"""What a draft says of training follows from rows and columns alone, and is what `training` accepts."""

from __future__ import annotations

import pytest

from headway.flows.act.table_training import EPOCHS, LARGEST_BATCH, LEAST_BATCH, MOST_STEPS, table_training
from headway.training.config.recipe_specs import TabularModelSpec
from headway.training.config.training_spec import TrainingSpec


@pytest.mark.parametrize("num_rows", [1, 30, 150, 800, 5_000, 41_000, 500_000, 40_000_000])
def test_every_table_is_seen_whole_in_bounded_steps_that_two_ranks_can_share(num_rows: int) -> None:
    drafted = table_training(num_rows, num_numeric=10)
    spec = TrainingSpec(
        max_epochs=drafted.epochs,
        global_batch_sequences=drafted.batch,
        micro_batch_sequences=drafted.batch // 2,
    )
    counted = spec.for_rows(num_rows)
    assert counted.num_replicas == 2 and LEAST_BATCH <= drafted.batch <= LARGEST_BATCH
    assert 1 <= drafted.epochs <= EPOCHS
    assert counted.max_steps <= MOST_STEPS or drafted.epochs == 1, "a pass over all rows is never cut"
    assert counted.max_steps == drafted.steps(num_rows)
    assert TabularModelSpec.model_validate(drafted.model).members == drafted.members


def test_very_wide_tables_and_those_without_numbers_are_read_without_waves() -> None:
    assert "frequencies" not in table_training(1000, num_numeric=0).model
    assert "frequencies" not in table_training(1000, num_numeric=4000).model
    assert "frequencies" in table_training(1000, num_numeric=20).model
