"""A batch that grows: which sizes are taken, and that every position of the sample order is in exactly one window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.trials_spec import TrialsSpec
from headway.training.config.batch_ramp import BatchPhase, BatchPhases
from headway.training.config.optimizer import OptimizerSpec, ScheduleSpec, learning_rate_line
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import (
    TrainingSpec,
    batch_line,
    can_share,
    length_line,
    replicas_per_rank,
    steps_per_epoch,
)

BY_SCHEDULE = {"from_sequences": 8, "at_steps": [100, 300]}
BY_NOISE = {"from_sequences": 8, "by": "noise_scale"}
SIZES = {"global_batch_sequences": 32, "micro_batch_sequences": 4}


def spec(ramp=BY_SCHEDULE, **changes) -> TrainingSpec:
    return TrainingSpec.model_validate({"batch_ramp": ramp, **SIZES, **changes})


tables = st.builds(
    lambda rows, steps: BatchPhases.of(rows).doubled_at(*np.cumsum(steps).tolist()),
    st.integers(1, 5),
    st.lists(st.integers(1, 20), max_size=5),
)


@given(tables, st.integers(0, 120), st.integers(1, 30))
def test_from_any_window_on_every_position_is_in_exactly_one_window_in_order(phases, start, num_windows):
    positions = [
        position
        for window in range(start, start + num_windows)
        for position in range(phases.row(window), phases.row(window) + phases.at(window).rows)
    ]
    assert positions == list(range(phases.row(start), phases.row(start + num_windows)))
    assert phases.row(0) == 0
    assert phases.row(start) == sum(phases.at(window).rows for window in range(start))


@given(tables)
def test_a_phase_ends_where_the_next_one_begins_with_twice_the_rows(phases):
    for phase, later in zip(phases.phases, phases.phases[1:], strict=False):
        assert phases.end_of(phase) == later.first_window
        assert phases.at(later.first_window - 1) == phase and phases.at(later.first_window) == later
        assert later.rows == 2 * phase.rows
    assert phases.end_of(phases.phases[-1]) is None and phases.last_rows == phases.phases[-1].rows


@given(tables, st.floats(0, 5000))
def test_the_windows_nearest_to_a_number_of_rows_are_no_further_from_it_than_one_more_or_less(phases, rows):
    found = phases.windows_nearest(rows)
    away = abs(phases.row(found) - rows)
    assert all(away <= abs(phases.row(other) - rows) for other in (max(0, found - 1), found + 1))


@given(st.integers(1, 64), st.floats(0.1, 50), st.integers(1, 10_000))
def test_without_a_ramp_epochs_are_as_many_steps_as_ever(replicas, epochs, num_rows):
    plain = TrainingSpec(max_epochs=epochs, global_batch_sequences=8, micro_batch_sequences=8)
    plain = plain.model_copy(update={"global_batch_sequences": 8 * replicas})
    assert plain.for_rows(num_rows).max_steps == max(1, round(epochs * num_rows / (8 * replicas)))


def test_without_the_key_a_run_is_described_as_ever():
    assert "batch_ramp" not in TrainingSpec().identity and "batch_ramp" not in TrainingSpec().model_dump(mode="json")
    assert TrainingSpec().batch_phases.phases == (BatchPhase(0, 0, 8),)


def test_a_ramp_is_part_of_what_a_run_is_and_is_read_again_as_it_was_written():
    for ramp in (BY_SCHEDULE, BY_NOISE):
        assert spec(ramp).identity["batch_ramp"]["from_sequences"] == 8
        assert TrainingSpec.model_validate(spec(ramp).model_dump(mode="json")) == spec(ramp)
    assert spec().batch_phases.phases == (BatchPhase(0, 0, 8), BatchPhase(100, 800, 16), BatchPhase(300, 4000, 32))
    assert spec(BY_NOISE).batch_phases.phases == (BatchPhase(0, 0, 8),)


@pytest.mark.parametrize(
    ("ramp", "changes", "message"),
    [
        ({"from_sequences": 12, "at_steps": [1]}, {}, "from_sequences 12 must come to global_batch_sequences 32"),
        ({"from_sequences": 32}, {}, "by doubling, once at least"),
        ({"from_sequences": 64}, {}, "by doubling, once at least"),
        ({"from_sequences": 2, "at_steps": [1, 2, 3, 4]}, {}, "2 must be whole micro-batches of 4"),
        ({"from_sequences": 8, "at_steps": [100]}, {}, "must name 2 steps, .* and names 1"),
        ({"from_sequences": 8, "at_steps": [9, 9]}, {}, "must ascend"),
        ({"from_sequences": 8, "at_steps": [0, 9]}, {}, "greater than 0"),
        (BY_NOISE | {"at_steps": [1, 2]}, {}, "at_steps: of by: schedule"),
        (BY_SCHEDULE | {"factor": 3}, {}, "factor: of by: noise_scale"),
        ({"from_sequences": 4, "by": "noise_scale"}, {}, "one micro-batch, whose noise cannot be measured"),
        (BY_NOISE, {"parallel": {"mode": "fast"}}, "parallel.mode exact alone"),
        (BY_NOISE, {"order": {"mix": [{"manifest": "0" * 64}]}}, "not measured with order.mix"),
        (BY_NOISE, {"max_epochs": 3}, "by: noise_scale decides how many rows a step has"),
        (BY_SCHEDULE, {"recipe": {"name": "gradient-boosting"}}, "trees are grown on all training rows"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_anything_is_spent(ramp, changes, message):
    with pytest.raises(ValidationError, match=message):
        spec(ramp, **changes)


def test_as_many_ranks_as_share_the_first_batch_share_every_one():
    assert [world for world in range(1, 9) if can_share(spec(), world)] == [1, 2]
    assert replicas_per_rank(spec(), 2) == 4, "of the largest, which memory is counted by"
    with pytest.raises(
        ConfigError, match=r"4 ranks cannot share 2 replicas \(the first batch.*from_sequences 8"
    ) as error:
        replicas_per_rank(spec(), 4)
    assert "batch_ramp.from_sequences" in str(error.value)


def test_epochs_are_a_budget_in_rows():
    # 100 steps of 8 and 50 of 16 rows.
    assert spec(max_epochs=1).for_rows(1600).max_steps == 150
    assert spec(max_epochs=1).for_rows(10_400).max_steps == 500
    assert steps_per_epoch(spec(max_steps=150), 1600) == 150
    assert steps_per_epoch(spec(BY_NOISE), 1600) is None


def test_the_lines_of_batch_and_length_say_each_size_its_accumulation_and_its_step():
    line = batch_line(spec(), world_size=2, context_tokens=1)
    assert line == (
        "examples/step  4 micro x 2 ranks x 4 accumulation = 32; batch ramp from 8 rows (accumulation 1), "
        "16 rows (accumulation 2) after step 100, 32 rows (accumulation 4) after step 300"
    )
    assert batch_line(spec(max_steps=200), world_size=2, context_tokens=1).endswith("(not reached in 200 steps)")
    assert batch_line(spec(BY_NOISE), world_size=1, context_tokens=1).endswith(
        "batch ramp from 8 rows (accumulation 2), twice as many once the noise scale is 2 x the batch, up to "
        "32 rows (accumulation 8)"
    )
    assert length_line(spec(max_steps=150), context_tokens=1, num_rows=800) == (
        "150 steps = 1,600 examples = 2 epochs of 800 rows"
    )
    assert length_line(spec(BY_NOISE), context_tokens=1, num_rows=None) == "1,000 steps = at most 32,000 examples"


def test_the_line_of_rates_says_whether_they_follow_the_batch():
    plain, scaled = OptimizerSpec(kind="sgd"), OptimizerSpec(kind="sgd", scale_with_batch="linear", reference_batch=16)
    lines = [
        learning_rate_line(each, ScheduleSpec(), global_batch=32, max_steps=100, grows=True) for each in (plain, scaled)
    ]
    assert "0.02, whatever the batch;" in lines[0]
    assert "0.04 at the largest batch, and scaled alike to smaller ones;" in lines[1]


@pytest.mark.parametrize("name", ["batch_ramp.at_steps", "batch_ramp.from_sequences", "batch_ramp.by"])
def test_trials_that_differ_in_the_ramp_are_of_one_length_unless_epochs_are_counted(name):
    trials = TrialsSpec.model_validate({"vary": {name: [8, 16]}, "rungs": [60]})
    with pytest.raises(ConfigError, match=f"one length, and `{name}` varies"):
        trials.drawn(Configuration(training=spec(max_epochs=2), shards=ShardSpec()))


def test_trials_may_vary_where_the_batch_doubles():
    trials = TrialsSpec.model_validate({"vary": {"batch_ramp.factor": [1.0, 2.0]}, "rungs": [60]})
    found = trials.drawn(Configuration(training=spec(BY_NOISE), shards=ShardSpec()))
    assert [trial.training.batch_ramp.factor for trial in found] == [1.0, 2.0]
    assert {trial.training.max_steps for trial in found} == {1000}
