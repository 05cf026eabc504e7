"""Configuration: impossible arithmetic is refused, with the numbers in the message."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.execution import ExecutionSpec, as_launched
from headway.training.config.training_spec import (
    ProfileSpec,
    TrainingSpec,
    batch_line,
    can_share,
    length_line,
    replicas_per_rank,
)
from headway.training.config.validation import ValidationSpec

SPEC = TrainingSpec(global_batch_sequences=32, micro_batch_sequences=8)


@pytest.mark.parametrize(("world_size", "each"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_any_number_of_ranks_up_to_that_of_replicas_can_share_them(world_size, each):
    assert replicas_per_rank(SPEC, world_size) == each


@pytest.mark.parametrize(
    ("world_size", "possible"), [(1, True), (2, True), (3, True), (4, True), (5, False), (8, False)]
)
def test_what_a_run_may_shrink_to_is_known_beforehand(world_size, possible):
    assert can_share(SPEC, world_size) == possible


@pytest.mark.parametrize("world_size", [5, 6, 8])
def test_another_world_is_refused_with_the_numbers_and_what_would_work(world_size):
    with pytest.raises(
        ConfigError, match=rf"{world_size} ranks cannot share 4 replicas .*32 / .*8.*one at least.* 4 ranks or fewer"
    ):
        replicas_per_rank(SPEC, world_size)


@pytest.mark.parametrize(("whole", "micro", "shown"), [(24, 8, "= 3"), (20, 8, "= 2.5"), (4, 8, "= 0.5")])
def test_a_batch_that_is_no_power_of_two_of_replicas_is_refused_with_the_numbers(whole, micro, shown):
    with pytest.raises(ValidationError, match=f"global batch {whole} / micro batch {micro} {shown} replicas"):
        TrainingSpec(global_batch_sequences=whole, micro_batch_sequences=micro)


def test_the_number_of_workers_is_no_part_of_what_decides_the_weights():
    assert not [name for name in TrainingSpec.model_fields if "world" in name or "rank" in name]


def test_when_to_save_and_to_profile_are_no_part_of_what_decides_the_weights():
    other = {"checkpoints": CheckpointSpec(every_steps=None, every_s=60), "profile": ProfileSpec(first_step=3)}
    assert SPEC.model_copy(update=other).identity == SPEC.identity
    assert SPEC.model_copy(update={"validation": ValidationSpec(every_steps=5)}).identity != SPEC.identity


def test_a_run_described_with_them_is_still_read_and_its_ranks_go_by_their_launch():
    before = SPEC.model_copy(update={"checkpoints": CheckpointSpec(every_steps=7)})
    run = TrainingSpec.model_validate(before.model_dump(mode="json"))
    assert as_launched(run, {}).checkpoints.every_steps == 7
    now = SPEC.model_copy(update={"profile": ProfileSpec(first_step=3)})
    assert as_launched(run, ExecutionSpec.of(now).environment()) == now
    assert TrainingSpec.model_validate(SPEC.identity) == SPEC


def test_ranks_are_told_only_what_is_said_so_that_frozen_code_meets_no_key_that_came_later():
    saves = ExecutionSpec(checkpoints=CheckpointSpec(every_steps=None, every_s=60), profile=None)
    (message,) = saves.environment().values()
    assert json.loads(message) == {"checkpoints": {"every_steps": None, "every_s": 60.0}, "profile": None}


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="learning_rate"):
        TrainingSpec(learning_rate=1)


def test_the_batch_line_adds_up():
    line = batch_line(SPEC, world_size=2, context_tokens=256)
    assert line == "tokens/step  8 micro x 256 seq x 2 ranks x 2 accumulation = 8,192"
    line = batch_line(SPEC, world_size=3, context_tokens=256)
    assert line == "tokens/step  8 micro x 256 seq x 4 on 3 ranks (1 to 2 each) = 8,192"


@pytest.mark.parametrize(
    ("context_tokens", "num_rows", "line"),
    [
        (256, 4000, "1,000 steps = 8,192,000 tokens = 8 epochs of 4,000 rows"),
        (256, None, "1,000 steps = 8,192,000 tokens"),
        (1, 320_000, "1,000 steps = 32,000 examples = 0.1 epochs of 320,000 rows"),
        (1, 13, "1,000 steps = 32,000 examples = 2,462 epochs of 13 rows"),
        (None, None, "1,000 steps = 32,000 rows"),
    ],
)
def test_the_length_line_adds_up(context_tokens, num_rows, line):
    assert length_line(SPEC, context_tokens=context_tokens, num_rows=num_rows) == line


def test_every_field_is_described_for_the_form():
    def fields(model):
        for name, field in model.model_fields.items():
            nested = getattr(field.annotation, "model_fields", None)
            yield from fields(field.annotation) if nested else [(f"{model.__name__}.{name}", field.description)]

    assert [name for name, description in fields(TrainingSpec) if not description] == []


@pytest.mark.parametrize(
    ("epochs", "num_rows", "max_steps"), [(2, 320, 20), (1, 100, 3), (0.5, 320, 5), (1, 3, 1), (20, 41_000, 25_625)]
)
def test_epochs_become_the_nearest_number_of_whole_batches_once_rows_are_counted(epochs, num_rows, max_steps):
    counted = SPEC.model_copy(update={"max_epochs": epochs}).for_rows(num_rows)
    assert (counted.max_steps, counted.max_epochs) == (max_steps, None)
    assert "max_epochs" not in counted.model_dump()
    assert SPEC.for_rows(num_rows) is SPEC


def test_length_is_said_once():
    with pytest.raises(ValidationError, match="max_epochs takes the place of max_steps"):
        TrainingSpec(max_epochs=3, max_steps=500)
    mix = {"mix": [{"manifest": "0" * 64}]}
    with pytest.raises(ValidationError, match=r"with order\.mix give max_steps"):
        TrainingSpec.model_validate({"max_epochs": 3, "order": mix})


def test_a_length_in_epochs_is_the_same_when_written_out_and_read_again():
    spec = TrainingSpec(max_epochs=3)
    assert TrainingSpec.model_validate_json(spec.model_dump_json()) == spec
    assert length_line(spec, context_tokens=1, num_rows=None) == "3 epochs; steps are counted once rows are"
    assert length_line(spec, context_tokens=1, num_rows=80) == "30 steps = 240 examples = 3 epochs of 80 rows"
