"""Which ranks of a gang share a host, and which hosts a rack: the levels that sums of gradients are made on.

What leaves a host is dear. Where a host has several ranks these add up first, and each hands one part to the hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from headway.training.launch.base import protocol


class Level(NamedTuple):
    """The ranks among which this one adds up on a level."""

    place: str
    """What they are within, or between: `host`, `rack`, `hosts` or `racks`."""
    num_ranks: int
    group: dist.ProcessGroup


def level_sizes(environment: Mapping[str, str], world_size: int) -> dict[str, int]:
    """Ranks that meet on each level, innermost first; empty where one level does: one host, or a rank on each.

    Args:
        environment: a rank's, as its agent and guard have set it.
    """
    per_agent = int(environment.get("LOCAL_WORLD_SIZE", "1"))
    # Agents that share a machine have no network between them to spare.
    is_host = int(environment.get(protocol.RANKS_HERE, per_agent)) == per_agent
    num_hosts, rest = divmod(world_size, per_agent)
    if not is_host or rest or num_hosts < 2 or per_agent < 2:
        return {}
    per_rack = int(environment.get(protocol.NODES_PER_RACK, "1"))
    num_racks, rest = divmod(num_hosts, per_rack)
    sizes = {"host": per_agent}
    # A lost host may leave racks of unequal size; then hosts meet on one level.
    return sizes | (
        {"rack": per_rack, "racks": num_racks} if per_rack > 1 and num_racks > 1 and not rest else {"hosts": num_hosts}
    )


def members(sizes: Sequence[int], rank: int) -> Iterator[list[int]]:
    """Of each level, the ranks that this one meets there, in the order of the tree.

    Args:
        sizes: innermost first; ranks of a level lie as far apart as all levels within it are long.
    """
    for level, size in enumerate(sizes):
        stride = math.prod(sizes[:level])
        first = rank - rank // stride % size * stride
        yield [first + place * stride for place in range(size)]


def make_levels(
    sizes: Mapping[str, int], rank: int, new_group: Callable[[list[int]], dist.ProcessGroup]
) -> tuple[Level, ...]:
    """All ranks call it; each makes the groups that it is in.

    Args:
        new_group: makes a group of these ranks, which all of them call at once.
    """
    ranks = members(tuple(sizes.values()), rank)
    return tuple(Level(place, size, new_group(each)) for (place, size), each in zip(sizes.items(), ranks, strict=True))
