"""What follows from validations is decided by their figures alone, and is remembered whole."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError, TrainingFailed
from headway.training.config.training_spec import TrainingSpec
from headway.training.config.validation import ValidationSpec
from headway.training.data.load.device_copy import to_tensors
from headway.training.evaluation.measures import CLASSES, NUMBERS, TEXT, validating_measure
from headway.training.evaluation.validation import Validation, ValidationState
from headway.training.evaluation.validation_rows import Block
from headway.training.observe.ledger import Ledger, read_events
from headway.training.parallel.strategy import BatchShare
from headway.training.ranks.distributed import ProcessGroup

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def after(values: list[float], spec: ValidationSpec, *, greater_is_better: bool = False) -> ValidationState:
    state = ValidationState()
    for number, value in enumerate(values, 1):
        state = state.after(number, value, spec, greater_is_better=greater_is_better)
    return state


@given(VALUES)
def test_the_best_is_the_first_of_the_lowest_and_stale_counts_what_came_after_it(values):
    state = after(values, ValidationSpec(every_steps=1))
    assert state.best == min(values)
    assert state.best_step == values.index(min(values)) + 1
    assert (state.step, state.stale) == (len(values), len(values) - state.best_step)


@given(VALUES)
def test_where_more_is_better_it_is_the_mirror_image(values):
    spec = ValidationSpec(every_steps=1)
    lowest, highest = after(values, spec), after([-value for value in values], spec, greater_is_better=True)
    assert (lowest.best_step, lowest.stale) == (highest.best_step, highest.stale)


def test_what_gains_no_more_than_min_delta_is_not_better():
    state = after([1.0, 0.95, 0.9, 0.85], ValidationSpec(every_steps=1, min_delta=0.1))
    assert (state.best_step, state.stale) == (4, 0), "together they are: the best stays what it was meanwhile"
    assert after([1.0, 0.9], ValidationSpec(every_steps=1, min_delta=0.1)).best_step in (1, 2)
    assert after([1.0, 0.95], ValidationSpec(every_steps=1, min_delta=0.1)).best_step == 1


def test_its_memory_is_the_same_after_a_checkpoint():
    state = after([0.1 + 0.2, 0.7], ValidationSpec(every_steps=1))
    assert ValidationState.model_validate_json(state.model_dump_json()) == state


@given(st.integers(1, 2000), st.integers(1, 300))
def test_by_steps_it_comes_every_so_many_and_after_the_last(max_steps, every):
    spec = ValidationSpec(every_steps=every)
    due = [step for step in range(max_steps + 1) if spec.is_due(step, max_steps)]
    assert due == sorted({*range(every, max_steps + 1, every), max_steps})
    assert len(due) == spec.count(max_steps)


@given(st.integers(1, 2000), st.lists(st.floats(0.001, 1), min_size=1, max_size=9, unique=True))
def test_by_fractions_it_comes_as_often_as_they_differ_and_after_the_last(max_steps, fractions):
    spec = ValidationSpec(at_fractions=tuple(fractions))
    due = [step for step in range(max_steps + 1) if spec.is_due(step, max_steps)]
    assert due[-1] == max_steps and due[0] >= 1 and len(due) == spec.count(max_steps)


class Model:
    """One whose every forward pass takes as long as the clock says, and is counted."""

    share = BatchShare(0, 1)

    def __init__(self):
        self.num_passes = 0

    def evaluating(self):
        return contextlib.nullcontext()

    def measures(self, batch):
        self.num_passes += 1
        return {"nats": batch["x"].float()}


class Rows:
    measure, num_rows, num_blocks = CLASSES.decisive, 20, 20

    names = ("nats",)

    def blocks(self, numbers, device):
        for number in numbers:
            columns = {"x": np.array([[number + 1]])}
            yield Block(columns, to_tensors(columns, device))

    def sums(self, columns, measured):
        return float(measured["nats"].sum()), 1.0

    def value(self, sums):
        return sum(nats for nats, _ in sums) / len(sums)


def test_a_stop_breaks_a_validation_off_and_leaves_it_due(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.training.evaluation.validation.ASKED_EVERY_S", 0.0)
    model, asked = Model(), []
    validation = Validation(
        ValidationSpec(every_steps=5),
        model,
        Rows(),
        ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")),
        Ledger(tmp_path / "ledger.jsonl"),
        max_steps=10,
        stop_is_due=lambda: asked.append(1) or len(asked) == 3,
    )
    assert validation.run(5) and model.num_passes == 3 and validation.is_due(5)
    assert validation.state == ValidationState()
    assert not validation.run(5) and not validation.is_due(5)
    assert validation.state == ValidationState(step=5, best_step=5, best=10.5)
    first, second = [event for event in read_events(tmp_path / "ledger.jsonl") if event["event"] == "validation"]
    assert "value" not in first and second["value"] == 10.5


def test_a_figure_that_is_no_number_ends_the_run_with_a_word(tmp_path):
    rows = Rows()
    rows.value = lambda sums: float("nan")
    group, ledger = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")), Ledger(tmp_path / "ledger.jsonl")
    validation = Validation(ValidationSpec(every_steps=5), Model(), rows, group, ledger, max_steps=10)
    with pytest.raises(TrainingFailed, match="after step 5 came to nan log_loss"):
        validation.run(5)


def test_when_and_what_follows_are_said_in_a_line():
    spec = ValidationSpec(every_steps=30, patience=4, keep_best=True)
    follows = "the run ends after 4 in a row that were no better; the best is the model"
    assert str(spec) == f"every 30 steps and after the last; {follows}"
    few = ValidationSpec(at_fractions=(0.1, 0.5), max_rows=2000)
    assert str(few) == "at 0.1, 0.5 of the steps and after the last, on 2,000 rows at most"


def test_so_many_seconds_are_a_tenth_of_the_run_until_they_are_settled_once():
    spec = ValidationSpec(every_s=30)
    assert not spec.is_settled and spec.count(95) == 10
    settled = spec.settled(0.5, 400)
    assert (settled.every_s, settled.every_steps) == (30, 60) and settled.is_settled
    assert settled.settled(9.0, 400) is settled
    assert [step for step in range(401) if settled.is_due(step, 400)] == [60, 120, 180, 240, 300, 360, 400]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"every_steps": 5, "at_fractions": (0.5,)},
        {"every_s": 5, "at_fractions": (0.5,)},
        {"every_s": 0},
        {"at_fractions": (0.0,)},
        {"at_fractions": (0.5, 0.5)},
        {"every_steps": 5, "min_delta": 1e300},
    ],
)
def test_when_is_said_once(fields):
    with pytest.raises(ValidationError):
        ValidationSpec.model_validate(fields)


def test_where_steps_are_trees_it_is_refused():
    with pytest.raises(ValidationError, match="trees"):
        TrainingSpec.model_validate({"validation": {"every_steps": 5}, "recipe": {"name": "gradient-boosting"}})


def test_a_run_without_it_is_described_as_before_there_was_such_a_thing():
    assert "validation" not in TrainingSpec().model_dump()


def test_the_figure_is_the_decisive_one_or_one_that_rows_add_up_to():
    assert validating_measure(TEXT, None).name == "bits_per_byte"
    assert validating_measure(CLASSES, "accuracy").greater_is_better
    assert validating_measure(NUMBERS, "rmse").name == "rmse"
    with pytest.raises(ConfigError, match=r"'r2'.*mean_squared_error, rmse"):
        validating_measure(NUMBERS, "r2")
    with pytest.raises(ConfigError, match="log_loss, accuracy"):
        validating_measure(CLASSES, "acuracy")
