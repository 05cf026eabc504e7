"""Samples come in the order of the plan, whoever asks for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.training.config.batch_ramp import BatchPhases
from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.shards import TRAIN
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.order import block_gather
from headway.training.engine.batches import RankBatches, prefetched, prefetched_by_phase, proof_batch, step_rows
from headway.training.parallel.strategy import BatchShare


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some hundred batches of rows as short as these, where a block would have ten thousand."""
    monkeypatch.setattr(block_gather, "BLOCK_BYTES", 1 << 16)


@pytest.fixture(scope="module")
def reader(shared_project) -> ShardReader:
    return ShardReader(shared_project.workspace, shared_project.manifest, TRAIN)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_ranks_together_read_exactly_the_planned_rows(reader, tiny_training, world_size):
    for step in (0, 3, 50):
        seen = []
        for rank in range(world_size):
            produce = RankBatches(reader, tiny_training, share=BatchShare(rank, world_size), device=torch.device("cpu"))
            seen += [batch["tokens"] for batch in produce(step)]
        planned = reader.gather(step_rows(tiny_training, reader, step).reshape(-1))["tokens"]
        assert torch.equal(torch.cat(seen), torch.from_numpy(planned.astype(np.int64)))


@pytest.mark.parametrize("shares", [2, 4])
def test_ranks_that_take_replicas_in_turn_read_the_planned_rows_too(reader, tiny_training, shares):
    planned = step_rows(tiny_training, reader, 3)
    for index in range(shares):
        share = BatchShare(index, shares, stride=2)
        found = RankBatches(reader, tiny_training, share=share, device=torch.device("cpu"))(3)
        for replica, batch in zip(share.replicas(len(planned)), found, strict=True):
            expected = torch.from_numpy(reader.gather(planned[replica])["tokens"].astype(np.int64))
            assert torch.equal(batch["tokens"], expected)


def test_shares_deal_out_replicas_once_each_and_by_turns_within_a_stride():
    assert [list(BatchShare(index, 2).replicas(8)) for index in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    dealt = [list(BatchShare(index, 4, stride=2).replicas(8)) for index in range(4)]
    assert dealt == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize("options", [{}, {"prefetch_threads": 3}, {"prefetch_bytes": 1}])
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (5, 700), (1, 2), (4, 4)])
def test_batches_made_ahead_are_those_of_their_steps(reader, tiny_training, options, start, stop):
    batches = RankBatches(reader, tiny_training, share=BatchShare(1, 2), device=torch.device("cpu"))
    num_steps = 0
    with prefetched(batches, LoaderSpec(**options), start=start, stop=stop) as steps:
        for step, made in enumerate(steps, start):
            num_steps += 1
            for found, expected in zip(made, batches(step), strict=True):
                assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert num_steps == stop - start


@pytest.mark.parametrize("start", [0, 3, 11])
@pytest.mark.parametrize("is_known", [True, False])
def test_batches_grow_where_they_were_decided_to_however_late_and_no_row_is_lost_or_read_twice(
    reader, tiny_training, start, is_known
):
    """Windows 0 to 2 of 8 rows, to 6 of 16, then 32; decided before the range begins, or by the step before.

    A range that begins with a size tells of it too: the run may have been cut there.
    """
    doublings, stop = (3, 7), 12
    whole = BatchPhases.of(8).doubled_at(*doublings)
    known = [whole if is_known else BatchPhases.of(8).doubled_at(*(each for each in doublings if each <= start))]
    shares, told, found = [BatchShare(rank, 2) for rank in range(2)], [], []
    made = [
        prefetched_by_phase(
            range(start, stop),
            lambda: known[0],
            lambda phase, share=share: RankBatches(
                reader, tiny_training, share=share, device=torch.device("cpu"), phase=phase
            ),
            LoaderSpec(),
            lambda share=share: share,
            lambda *growth: told.append(growth),
        )
        for share in shares
    ]
    with made[0] as first, made[1] as second:
        for window, ranks in enumerate(zip(first, second, strict=True), start):
            seen = torch.cat([batch["tokens"] for rank in ranks for batch in rank])
            planned = reader.gather(step_rows(tiny_training, reader, window, whole).reshape(-1))["tokens"]
            assert torch.equal(seen, torch.from_numpy(planned.astype(np.int64)))
            found.append(window)
            known[0] = BatchPhases.of(8).doubled_at(*(each for each in doublings if is_known or each <= window + 1))
    assert found == list(range(start, stop))
    grown = [(window, whole.at(window - 1), whole.at(window)) for window in doublings if window >= start]
    assert sorted(told) == sorted(2 * grown)


def test_batches_stay_what_they_were_for_as_long_as_they_are_held(reader, tiny_training, monkeypatch):
    monkeypatch.setattr(block_gather, "BLOCK_BYTES", 2000)
    batches = RankBatches(reader, tiny_training, share=BatchShare(0, 2), device=torch.device("cpu"))
    assert batches.steps_per_block < 20
    with prefetched(batches, LoaderSpec(prefetch_bytes=20_000), start=0, stop=400) as steps:
        held = list(steps)
    for step, made in enumerate(held):
        for found, expected in zip(made, batches(step), strict=True):
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_every_batch_lies_as_an_allocation_of_its_own_would(reader, tiny_training):
    batches = RankBatches(reader, tiny_training, share=BatchShare(0, 1), device=torch.device("cpu"))
    made = [batch for step in batches.steps(batches.block(0), batches.steps_per_block) for batch in step]
    assert len(made) > 100
    assert all(values.data_ptr() % 64 == 0 for batch in made for values in batch.values())


def test_every_row_is_used_exactly_once_an_epoch(reader, tiny_training):
    num_steps = 3 * reader.num_rows  # eight rows a step: 24 epochs
    rows = np.concatenate([step_rows(tiny_training, reader, step).reshape(-1) for step in range(num_steps)])
    for epoch in rows[: 24 * reader.num_rows].reshape(24, reader.num_rows):
        assert sorted(epoch) == list(range(reader.num_rows))


def test_another_seed_is_another_order(reader, tiny_training):
    other = tiny_training.model_copy(update={"seed": 1})
    assert not np.array_equal(step_rows(tiny_training, reader, 0), step_rows(other, reader, 0))


@pytest.mark.parametrize(("micro_batch", "num_rows"), [(1, 1), (2, 2), (8, 4)])
def test_the_proof_batch_is_no_larger_than_a_micro_batch_and_always_the_same(
    reader, tiny_training, micro_batch, num_rows
):
    training = tiny_training.model_copy(update={"micro_batch_sequences": micro_batch})
    first, second = (proof_batch(reader, training, torch.device("cpu")) for _ in range(2))
    assert first["tokens"].shape == (num_rows, 17)
    assert torch.equal(first["tokens"], second["tokens"])
