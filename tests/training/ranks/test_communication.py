"""Buckets on their way: nothing is touched before it has arrived."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from headway.training.ranks import communication
from headway.training.ranks.communication import Collectives, TreeExchange
from headway.training.ranks.distributed import ProcessGroup


class Late(NamedTuple):
    """A collective that does its work at the last moment, when it is waited for."""

    calls: list
    name: str
    work: object

    def wait(self):
        self.calls.append(f"wait {self.name}")
        self.work()


class LateCollectives:
    """What rank 0 of some ranks sees when each of them contributes the same values, times its rank + 1."""

    def __init__(self, num_ranks, calls=None):
        self.num_ranks, self.calls = num_ranks, [] if calls is None else calls
        self.factors = torch.arange(1.0, num_ranks + 1)

    def all_reduce(self, tensor):
        return self._call("all_reduce", lambda: tensor.mul_(self.factors.sum()))

    def all_to_all(self, received, tensor, rows=()):
        part = tensor.chunk(self.num_ranks)[0]
        return self._call("all_to_all", lambda: received.copy_((self.factors[:, None] * part).flatten()))

    def all_gather(self, gathered, tensor):
        return self._call("all_gather", lambda: gathered.copy_(tensor.repeat(self.num_ranks)))

    def wait(self, work):
        work.wait()

    def _call(self, name, work):
        self.calls.append(name)
        return Late(self.calls, name, work)


@pytest.mark.parametrize("sizes", [(1,), (2,), (4,), (8,), (2, 2), (2, 4), (4, 1), (2, 2, 2), (4, 2, 2)], ids=str)
@pytest.mark.parametrize("num_buckets", [0, 1, 3, 7])
def test_an_exchange_hands_out_sums_only_after_they_have_arrived(sizes, num_buckets):
    exchange = TreeExchange([LateCollectives(size) for size in sizes])
    for _ in range(2):  # buffers are used again in the next step
        buckets = [torch.full((16,), float(value)) for value in range(num_buckets)]
        for bucket in buckets:
            exchange.start([bucket])
        exchange.finish()
        total = math.prod(size * (size + 1) / 2 for size in sizes)
        assert [bucket.tolist() for bucket in buckets] == [[value * total] * 16 for value in range(num_buckets)]


def test_a_buckets_second_half_is_issued_after_the_next_ones_first_half():
    """Every rank issues the same calls in the same order, whatever arrives first."""
    collectives = LateCollectives(4)
    exchange = TreeExchange([collectives])
    for value in range(3):
        exchange.start([torch.full((4,), float(value))])
    exchange.finish()
    assert [call for call in collectives.calls if not call.startswith("wait")] == [
        "all_to_all",
        "all_to_all",
        "all_gather",
        "all_to_all",
        "all_gather",
        "all_gather",
    ]


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2), (2, 4)], ids=str)
def test_what_a_bucket_costs_does_not_grow_with_their_number(sizes, monkeypatch):
    looked_at = []
    is_last = communication._Travelling.is_last
    monkeypatch.setattr(
        communication._Travelling, "is_last", property(lambda each: looked_at.append(1) or is_last.fget(each))
    )
    num_looks = []
    for num_buckets in (50, 100):
        looked_at.clear()
        exchange = TreeExchange([LateCollectives(size) for size in sizes])
        for _ in range(num_buckets):
            exchange.start([torch.ones(16)])
        exchange.finish()
        num_looks.append(len(looked_at))
    assert num_looks[1] <= 2.1 * num_looks[0]


def test_a_pair_needs_no_memory_beside_its_buckets():
    for sizes, expected in (((2,), [0]), ((4,), [16]), ((2, 2), [16, 0]), ((2, 4), [16, 8])):
        exchange = TreeExchange([LateCollectives(size) for size in sizes])
        exchange.start([torch.ones(16)])
        exchange.finish()
        assert [each.received.numel() for (bucket,) in [exchange._scratch] for each in bucket] == expected
        assert not any(each.packed.numel() for (bucket,) in [exchange._scratch] for each in bucket)


def test_of_two_ranks_above_which_nothing_lies_neither_hands_out_parts_and_one_rank_says_nothing():
    for sizes, expected in (
        ((1,), []),
        ((2,), ["all_reduce"]),
        ((4,), ["all_to_all", "all_gather"]),
        ((2, 2), ["all_to_all", "all_reduce", "all_gather"]),
        ((2, 4), ["all_to_all", "all_to_all", "all_gather", "all_gather"]),
    ):
        calls: list[str] = []
        levels = [LateCollectives(size, calls) for size in sizes]
        exchange = TreeExchange(levels)
        exchange.start([torch.ones(8)])
        exchange.finish()
        assert [call for call in calls if not call.startswith("wait")] == expected
    alone = Collectives(ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    rows = torch.ones(2, 3)
    assert torch.equal(alone.gather(rows), rows)
