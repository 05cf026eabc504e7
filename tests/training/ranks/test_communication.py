"""Buckets on their way: nothing is touched before it has arrived."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

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

    def __init__(self, num_ranks):
        self.num_ranks, self.calls = num_ranks, []
        self.factors = torch.arange(1.0, num_ranks + 1)

    def all_reduce(self, tensor):
        return self._call("all_reduce", lambda: tensor.mul_(self.factors.sum()))

    def all_to_all(self, received, tensor):
        part = tensor.chunk(self.num_ranks)[0]
        return self._call("all_to_all", lambda: received.copy_((self.factors[:, None] * part).flatten()))

    def all_gather(self, gathered, tensor):
        return self._call("all_gather", lambda: gathered.copy_(tensor.repeat(self.num_ranks)))

    def wait(self, work):
        work.wait()

    def _call(self, name, work):
        self.calls.append(name)
        return Late(self.calls, name, work)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_an_exchange_hands_out_sums_only_after_they_have_arrived(num_ranks):
    exchange = tree_exchange(LateCollectives(num_ranks))
    for _ in range(2):  # buffers are used again in the next step
        buckets = [torch.full((16,), float(value)) for value in range(3)]
        for bucket in buckets:
            exchange.start(bucket)
        exchange.finish()
        total = num_ranks * (num_ranks + 1) / 2
        assert [bucket.tolist() for bucket in buckets] == [[value * total] * 16 for value in range(3)]


def test_a_buckets_second_half_is_issued_after_the_next_ones_first_half():
    """Every rank issues the same calls in the same order, whatever arrives first."""
    collectives = LateCollectives(4)
    exchange = TreeExchange(collectives)
    for value in range(3):
        exchange.start(torch.full((4,), float(value)))
    exchange.finish()
    assert [call for call in collectives.calls if not call.startswith("wait")] == [
        "all_to_all",
        "all_to_all",
        "all_gather",
        "all_to_all",
        "all_gather",
        "all_gather",
    ]


def test_the_way_depends_on_the_number_of_ranks_and_one_rank_says_nothing():
    kinds = [type(tree_exchange(LateCollectives(size))) for size in (1, 2, 4)]
    assert kinds == [LocalExchange, PairExchange, TreeExchange]
    alone = Collectives(ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    rows = torch.ones(2, 3)
    assert torch.equal(alone.gather(rows), rows)
