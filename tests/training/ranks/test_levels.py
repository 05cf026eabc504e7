"""Which ranks add up together: those of a host, then hosts, and racks where somebody names them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.training.launch.base import protocol
from headway.training.ranks.levels import level_sizes, make_levels, members


def environment(per_agent, ranks_here=None, per_rack=1):
    return {
        "LOCAL_WORLD_SIZE": str(per_agent),
        protocol.RANKS_HERE: str(ranks_here or per_agent),
        protocol.NODES_PER_RACK: str(per_rack),
    }


@pytest.mark.parametrize(
    ("given", "world_size", "expected"),
    [
        (environment(2), 4, {"host": 2, "hosts": 2}),
        (environment(8), 32, {"host": 8, "hosts": 4}),
        (environment(2, per_rack=2), 8, {"host": 2, "rack": 2, "racks": 2}),
        (environment(2, per_rack=2), 4, {"host": 2, "hosts": 2}),  # one rack
        (environment(2, per_rack=4), 6, {"host": 2, "hosts": 3}),  # left of four
        (environment(2, per_rack=2), 12, {"host": 2, "rack": 2, "racks": 3}),
        (environment(1), 4, {}),
        (environment(4), 4, {}),
        (environment(2, ranks_here=4), 4, {}),  # two agents on one machine
        (environment(3), 6, {"host": 3, "hosts": 2}),
        ({}, 4, {}),
    ],
)
def test_levels_are_chosen_where_hosts_have_several_ranks(given, world_size, expected):
    assert level_sizes(given, world_size) == expected


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_each_rank_meets_the_same_ranks_as_they_meet_and_all_meet_through_the_levels(sizes):
    world = range(math.prod(sizes))
    for level in range(len(sizes)):
        groups = {rank: list(members(sizes, rank))[level] for rank in world}
        assert all(rank in group and groups[peer] == group for rank, group in groups.items() for peer in group)
    # What one rank knows comes to all: each level's rank passes it on.
    reached = {0}
    for level in range(len(sizes)):
        reached |= {peer for rank in reached for peer in list(members(sizes, rank))[level]}
    assert reached == set(world)


def test_a_rank_makes_the_groups_that_it_is_in():
    made = []
    levels = make_levels({"host": 2, "hosts": 4}, 5, lambda ranks: made.append(ranks) or ranks)
    assert made == [[4, 5], [1, 3, 5, 7]]
    assert [(level.place, level.num_ranks) for level in levels] == [("host", 2), ("hosts", 4)]
