"""Gradients as whole numbers in a configuration: what fits, and what is said of what does not."""

from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.config.training_spec import TrainingSpec, can_share, replicas_per_rank


def spec(text: str, batch: int = 32, micro: int = 4, more: str = "") -> TrainingSpec:
    file = f"global_batch_sequences: {batch}\nmicro_batch_sequences: {micro}\ngradient_compression: {text}\n{more}"
    return parse_yaml_model(TrainingSpec, file, where="pipeline.yaml")


def test_whole_numbers_have_defaults_and_other_ways_keep_the_keys_of_their_runs() -> None:
    whole = spec("{kind: int8}")
    assert whole.integers == IntegerCompressionSpec(kind="int8", islands=4, feedback=True, block=256)
    assert whole.integers.levels == 31 and whole.rounding == "none"
    plain = spec("bf16")
    assert plain.integers is None and plain.rounding == "bf16"
    assert plain.identity["gradient_compression"] == "bf16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int8", r"gradient_compression \(line 3\): whole numbers are said by a mapping: {kind: int8}"),
        *(
            (text, r"gradient_compression \(line 3\): must be none, bf16, fp16, or a mapping such as {kind: int8}")
            for text in ("[{kind: int8}]", "null", "8")
        ),
        ("bf17", r"gradient_compression \(line 3\): must be one of none, bf16, fp16, given 'bf17'"),
        ("{kind: int4}", r"gradient_compression.kind \(line 3\): must be one of int8, int32, given 'int4'"),
        (
            "{kind: int8, islands: 3}",
            r"yaml: gradient_compression \(line 3\): islands: 3 is no power of two from 1 to 64",
        ),
        ("{kind: int8, islands: true}", r"islands \(line 3\): must be a whole number, given True"),
        ("{kind: int8, block: 48}", r"block: 48 is no power of two"),
        ("{kind: int8, islands: 16}", r"16 islands need as many replicas, and a step has 8 .*say islands: 8, or lower"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        spec(text)
    assert "problems" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("parallel: {mode: fast}", "of mode `exact` without `shard`"),
        ("parallel: {shard: -1, replicate: 1}", "of mode `exact` without `shard`"),
        ("recipe: {name: gradient-boosting}", "trees have no gradient that travels"),
        ("batch_ramp: {from_sequences: 8, at_steps: [1, 2]}", "and a step has 2"),
    ],
)
def test_what_cannot_send_whole_numbers_says_so(more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec("{kind: int8}", more=more)


def test_as_many_ranks_as_islands_share_a_batch_and_no_more() -> None:
    whole = spec("{kind: int8, islands: 4}")
    assert [can_share(whole, size) for size in (1, 2, 3, 4, 8)] == [True, True, True, True, False]
    with pytest.raises(ConfigError, match="8 ranks cannot share 4 islands") as refused:
        replicas_per_rank(whole, 8)
    assert "Start 4 ranks or fewer" in refused.value.advice
    assert [replicas_per_rank(whole, size) for size in (1, 2, 3, 4)] == [8, 4, 4, 2], "of whole islands"


@pytest.mark.parametrize(("world_size", "islands"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_one_rank_that_is_measured_alone_has_the_islands_of_one(world_size: int, islands: int) -> None:
    whole: Any = spec("{kind: int8, islands: 4}").for_one_of(world_size)
    assert whole.integers.islands == islands
    assert spec("bf16").for_one_of(world_size) == spec("bf16")
