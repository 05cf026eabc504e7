"""What the configuration of federated rounds refuses, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headway.training.config.communication_spec import OuterSpec, SyncSpec
from headway.training.config.training_spec import TrainingSpec, length_line, steps_per_epoch


def spec(**changes: Any) -> TrainingSpec:
    small: dict[str, Any] = {"global_batch_sequences": 8, "micro_batch_sequences": 2, "max_steps": 80}
    return TrainingSpec.model_validate({**small, "sync": {"every_steps": 8, "federated": {}}, **changes})


def test_islands_that_are_no_clients_keep_the_keys_of_their_runs() -> None:
    identity = spec(sync={"every_steps": 8, "outer": {"momentum": 0.5}}).identity["sync"]
    assert identity["outer"] == {"lr": 1.0, "momentum": 0.5, "nesterov": False} and "federated" not in identity
    adaptive = OuterSpec(kind="yogi", square_decay=0.9, epsilon=0.01)
    assert OuterSpec.model_validate(adaptive.model_dump(mode="json")) == adaptive
    digests = [
        str(spec(sync={"every_steps": 8, "outer": outer}).identity)
        for outer in ({}, {"kind": "adam"}, {"kind": "adam", "epsilon": 0.1}, {"kind": "adam", "square_decay": 0.1})
    ]
    assert len({*digests}) == len(digests)


def test_rows_of_drawn_clients_make_no_epoch() -> None:
    assert steps_per_epoch(spec(), 100) is None
    assert length_line(spec(), context_tokens=1, num_rows=100) == "80 steps = 640 examples"


@pytest.mark.parametrize(
    ("validation", "is_refused"),
    [
        ({"every_steps": 16}, False),
        ({"every_steps": 12}, True),
        ({"every_steps": 100}, False),
        ({"at_fractions": [0.1, 0.5, 1]}, False),
        ({"at_fractions": [0.15]}, True),
    ],
)
def test_validations_are_between_rounds(validation: dict[str, Any], is_refused: bool) -> None:
    if is_refused:
        with pytest.raises(ValidationError, match="validations are between rounds, after multiples of 8 steps"):
            spec(validation=validation)
    else:
        spec(validation=validation)


def test_a_long_run_is_read_as_fast_as_a_short_one() -> None:
    """Nobody looks at its steps one by one."""
    assert spec(validation={"every_steps": 8}, max_steps=10**12).max_steps == 10**12


def test_one_rank_that_is_measured_alone_has_the_answers_that_its_rounds_need() -> None:
    whole = spec(sync=SyncSpec.model_validate({"every_steps": 8, "federated": {"quorum": 3}}))
    alone = whole.for_one_of(2)
    assert alone.sync is not None and alone.federated is not None
    assert (alone.sync.islands, alone.federated.quorum) == (2, 2)
