"""Gradients as whole numbers in a configuration: what fits, and what is said of what does not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.training.config.communication_spec import IntegerCompressionSpec, SyncSpec
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
        ("{kind: int2}", r"gradient_compression.kind \(line 3\): must be one of int4, int8, int32, given 'int2'"),
        ("{kind: int4, islands: 8}", r"int4 has room for 4 islands at most, given 8"),
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


def apart(sync: str, more: str = "", batch: int = 32) -> TrainingSpec:
    file = f"global_batch_sequences: {batch}\nmicro_batch_sequences: 4\nsync: {sync}\n{more}"
    return parse_yaml_model(TrainingSpec, file, where="pipeline.yaml")


def test_islands_that_train_apart_are_in_the_runs_key_and_other_runs_keep_theirs() -> None:
    assert "sync" not in spec("none").identity
    assert apart("{every_steps: 8}").identity["sync"]["islands"] == 4
    assert apart("{every_steps: 8}").islands == 4


@pytest.mark.parametrize(
    ("sync", "more", "message"),
    [
        ("{}", "", r"sync \(line 3\): `every_steps` is missing"),
        ("{every_steps: 0}", "", r"sync.every_steps \(line 3\)"),
        ("{every_steps: 4, islands: 3}", "", r"islands: 3 is no power of two from 1 to 64"),
        ("{every_steps: 4, islands: 16}", "", r"sync.islands: 16 islands need as many replicas, and a step has 8"),
        ("{every_steps: 6, fragments: 4}", "", r"every_steps 6 is no multiple of fragments 4"),
        ("{every_steps: 8, fragments: 4, delay_steps: 2}", "", r"delay_steps 2: .* which is after 2 steps"),
        ("{every_steps: 4, outer: {nesterov: true}}", "", r"nesterov needs a momentum"),
        ("{every_steps: 4, islands: 8, movements: int4}", "", r"int4 has room for 4 islands at most"),
        ("{every_steps: 4}", "gradient_compression: bf16", r"sync: movements travel in place of gradients"),
        ("{every_steps: 4}", "precision: fp16", r"sync: a loss scale is one for all ranks.*bf16"),
        ("{every_steps: 4}", "ema: {}", r"sync: an average of weights needs them at every step"),
        ("{every_steps: 4}", "parallel: {mode: fast}", r"sync: of mode `exact` without `shard`"),
        ("{every_steps: 4}", "parallel: {replicate: 1, shard: -1}", r"sync: of mode `exact` without `shard`"),
        ("{every_steps: 4, start_after_steps: 20}", "max_steps: 20", r"islands never train apart in 20 steps"),
        ("{every_steps: 4}", "batch_ramp: {from_sequences: 16, by: noise_scale}", r"sync: the noise scale"),
        ("{every_steps: 4}", "recipe: {name: gradient-boosting}", r"sync: trees have no gradient that travels"),
    ],
)
def test_what_islands_that_train_apart_cannot_have_is_refused_by_name(sync: str, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apart(sync, more)


@pytest.mark.parametrize("movements", ["fp32", "int8", "int4"])
def test_one_rank_that_is_measured_alone_may_have_any_number_of_islands(movements: str) -> None:
    sync = f"{{every_steps: 4, islands: {4 if movements == 'int4' else 8}, movements: {movements}}}"
    for world_size in range(1, 5):
        whole: Any = apart(sync).for_one_of(world_size)
        integers = whole.sync.integers
        assert integers is None or integers.islands == whole.sync.islands == -(-apart(sync).islands // world_size)


def test_epochs_of_so_few_rows_that_islands_never_train_apart_are_refused_once_rows_are_counted() -> None:
    epochs = apart("{every_steps: 4, start_after_steps: 20}", "max_epochs: 2")
    assert epochs.for_rows(16 * 21).max_steps == 21
    with pytest.raises(ConfigError, match=r"start_after_steps: islands never .* 2 passes over 320 rows are 20 steps"):
        epochs.for_rows(16 * 20)


def test_ranks_have_islands_or_islands_have_ranks() -> None:
    whole = apart("{every_steps: 4, islands: 2}")
    assert [world for world in range(1, 10) if can_share(whole, world)] == [1, 2, 4, 6, 8]
    with pytest.raises(ConfigError, match=r"3 ranks cannot share 2 islands of 4 replicas.*2 ranks or fewer, or 4 or 6"):
        replicas_per_rank(whole, 3)


@given(
    every=st.integers(1, 4).map(lambda each: 2 * each),
    fragments=st.sampled_from([1, 2]),
    delay=st.integers(0, 3),
    start=st.integers(0, 5),
    max_steps=st.integers(6, 40),
    due=st.sets(st.integers(1, 40)),
)
def test_every_fragment_leaves_once_in_so_many_steps_and_all_have_arrived_at_the_end(
    every: int, fragments: int, delay: int, start: int, max_steps: int, due: set[int]
) -> None:
    assume(delay < every // fragments)
    sync = SyncSpec(every_steps=every, fragments=fragments, delay_steps=delay, start_after_steps=start)
    left: dict[int, list[int]] = {number: [] for number in range(fragments)}
    done, on_their_way = start, range(0)
    while done < max_steps:
        end = sync.round_end(done, max_steps, due.__contains__)
        assert done < end <= max_steps and not due & set(range(done + 1, end)), "a validation is never passed by"
        for step in range(done, end):
            arrived = on_their_way if not sync.on_their_way(step + 1, max_steps) else range(0)
            on_their_way = range(0) if arrived else on_their_way
        for number in sync.leaving(end, max_steps):
            left[number].append(end)
        assert not (on_their_way and sync.leaving(end, max_steps)), "one arrives before the next leaves"
        on_their_way = sync.on_their_way(end, max_steps)
        done = end
    assert not on_their_way and all(ends[-1] == max_steps for ends in left.values())
    gaps = [after - before for ends in left.values() for before, after in pairwise([start, *ends])]
    assert max(gaps) <= every
