"""The whole promise: whatever the world, the mixture and the stop, the same global batches, each row once an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Link, PayloadColumn, Shard, ShardGroup, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.order_spec import OrderSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.order import block_gather
from headway.training.data.order.block_gather import BlockGather
from headway.training.data.order.mixing import sample_order
from headway.training.data.shards.parquet_payload import payload_of, write_shard

NOTHING = "0" * 64
COLUMN = PayloadColumn(name="number", dtype="int64", shape=(1,))
SIZES = (37, 100, 64)
"""Rows of three datasets, in row groups of 7; a row's one value is 1000 * dataset + row."""


@pytest.fixture(scope="module", autouse=True)
def little_ahead() -> Iterator[None]:
    """Borders of what is gathered and located at once everywhere, also in so few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_gather, "BLOCK_BYTES", 200)
        patch.setattr(block_gather, "LOCATED_ROWS", 64)
        yield


def numbered_rows(workspace: Workspace, dataset: int, num_rows: int) -> ShardManifest:
    shards = []
    for first in range(0, num_rows, 30):
        numbers = 1000 * dataset + np.arange(first, min(first + 30, num_rows))
        rows, sink = payload_of(COLUMN, numbers[:, None]), BytesIO()
        row_groups = write_shard(
            sink, (COLUMN,), lambda start, stop, rows=rows: {"number": rows[start:stop]}, len(rows), 7
        )
        file = workspace.publish(f"shards/{dataset}-{first}", sink.getvalue())
        shards.append(Shard(file=file, num_rows=numbers.size, row_groups=row_groups))
    group = ShardGroup(
        group=0, split="train", num_rows=num_rows, num_samples=num_rows, documents=(), shards=tuple(shards)
    )
    nothing = {name: Link(kind=name, sha256=NOTHING) for name in ("snapshot", "receipt", "fitted")}
    return ShardManifest(
        **nothing, spec=dataset, columns=(COLUMN,), groups=(group,), content_sha256=NOTHING, libraries={}
    )


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[ShardManifest]]:
    workspace = Workspace.create(str(tmp_path_factory.mktemp("numbered")))
    return workspace, [numbered_rows(workspace, dataset, size) for dataset, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def readers(manifests: tuple[Workspace, list[ShardManifest]]) -> dict[int, ShardReader]:
    """By number of datasets."""
    workspace, held = manifests
    return {count: ShardReader(workspace, held[0], "train", also=held[1:count]) for count in (1, 2, 3)}


def order_spec(shuffle: str, weights: Sequence[float], window: int) -> OrderSpec:
    mix = [{"manifest": NOTHING, "weight": weight} for weight in weights[1:]]
    return OrderSpec.model_validate({"shuffle": shuffle, "window_row_groups": window, "weight": weights[0], "mix": mix})


PLANS = st.builds(
    order_spec,
    st.sampled_from(["exact", "window"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 20),
)


def numbers(gathered: dict[str, object]) -> NDArray[np.int64]:
    return np.asarray(gathered["number"]).reshape(-1)


def shares(batch_rows: int, world_size: int) -> list[slice]:
    cuts = [rank * batch_rows // world_size for rank in range(world_size + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


@settings(max_examples=60)
@given(PLANS, st.integers(0, 2**40), st.integers(1, 40), st.lists(st.integers(0, 12), max_size=3), st.data())
def test_any_world_that_stops_anywhere_reads_the_same_global_batches(
    readers: dict[int, ShardReader], plan: OrderSpec, seed: int, batch_rows: int, stops: list[int], data: st.DataObject
) -> None:
    reader = readers[1 + len(plan.mix)]
    whole = BlockGather(reader, sample_order(plan, reader, seed=seed), batch_rows=batch_rows)
    num_batches = max(stops, default=0) + 3
    expected = numbers(whole.gather(0, num_batches)).reshape(num_batches, batch_rows)
    cuts = sorted({0, *stops, num_batches})
    for start, stop in itertools.pairwise(cuts):
        world_size = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
        # Every restart knows the position and nothing else.
        ranks = [
            BlockGather(reader, sample_order(plan, reader, seed=seed), batch_rows=batch_rows, share=share)
            for share in shares(batch_rows, world_size)
        ]
        for batch in range(start, stop):
            together = np.concatenate([numbers(rank.gather(batch, 1)) for rank in ranks])
            assert np.array_equal(together, expected[batch])


@given(PLANS, st.integers(0, 2**40), st.integers(0, 4))
def test_each_dataset_gives_every_row_once_an_epoch_and_its_share_of_the_batches(
    readers: dict[int, ShardReader], plan: OrderSpec, seed: int, epoch: int
) -> None:
    reader = readers[1 + len(plan.mix)]
    num_samples = 700
    seen = numbers(BlockGather(reader, sample_order(plan, reader, seed=seed), batch_rows=7).gather(0, num_samples // 7))
    weights = [plan.weight, *(dataset.weight for dataset in plan.mix)]
    for dataset, weight in enumerate(weights):
        own = seen[seen // 1000 == dataset] % 1000
        assert abs(own.size - num_samples * weight / sum(weights)) < 1
        of_epoch = own[epoch * SIZES[dataset] : (epoch + 1) * SIZES[dataset]]
        assert len(set(of_epoch.tolist())) == of_epoch.size
        if of_epoch.size == SIZES[dataset]:
            assert sorted(of_epoch.tolist()) == list(range(SIZES[dataset]))


@given(st.integers(0, 60), st.integers(1, 60))
def test_how_many_batches_are_gathered_at_once_never_shows(
    readers: dict[int, ShardReader], first: int, count: int
) -> None:
    reader = readers[3]
    order = sample_order(order_spec("window", [1, 2, 3], 4), reader, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_gather, "BLOCK_BYTES", 5 * 8 * 4)
        small = BlockGather(reader, order, batch_rows=5)
    assert small.batches_per_block == 4
    large = BlockGather(reader, order, batch_rows=5)
    assert np.array_equal(numbers(small.gather(first, count)), numbers(large.gather(first, count)))
    assert np.array_equal(numbers(small.block(first)), numbers(large.gather(first * 4, 4)))


def test_one_dataset_is_ordered_alike_alone_and_with_a_mixture_named(readers: dict[int, ShardReader]) -> None:
    positions = np.arange(50)
    alone = sample_order(OrderSpec(), readers[1], seed=4).rows(positions)
    mixed = sample_order(order_spec("exact", [1, 1], 1), readers[2], seed=4).rows(np.arange(100))
    assert np.array_equal(mixed[mixed < SIZES[0]], alone)


def test_datasets_of_a_mixture_are_shuffled_differently(
    manifests: tuple[Workspace, list[ShardManifest]], tmp_path: Path
) -> None:
    workspace, held = manifests
    reader = ShardReader(workspace, held[0], "train", also=[held[0]])
    rows = sample_order(order_spec("exact", [1, 1], 1), reader, seed=0).rows(np.arange(2 * SIZES[0]))
    assert not np.array_equal(rows[rows < SIZES[0]], rows[rows >= SIZES[0]] - SIZES[0])
