"""Which sums ranks make of what they hand in, so that however many they are, all of them make up one binary tree.

Leaves of the tree are the replicas of a global batch. Ranks take stretches of any length: the largest subtrees that lie
within a stretch are added up where they are, and what remains of the tree is added up where ranks meet. So 3 ranks give
the bits of 1, 2 or 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Subtree(NamedTuple):
    first: int
    """Its first leaf."""
    height: int
    """It has 2 to the power of this many leaves."""

    def joins(self, right: Subtree) -> bool:
        """Whether the two are the halves of one larger subtree, this one its left half."""
        size = 1 << self.height
        return self.height == right.height and self.first + size == right.first and not self.first & size

    def joined(self) -> Subtree:
        return Subtree(self.first, self.height + 1)


def subtrees(leaves: range, *, height: int) -> Iterator[Subtree]:
    """The largest subtrees of these leaves, in order, none higher than that."""
    first = leaves.start
    while first < leaves.stop:
        aligned = (first & -first).bit_length() - 1 if first else height
        subtree = Subtree(first, min(height, aligned, (leaves.stop - first).bit_length() - 1))
        yield subtree
        first += 1 << subtree.height


class LevelPlan(NamedTuple):
    """What the ranks that meet on a level make of the rows that they hand in, one rank's after another's."""

    rows_of_members: tuple[int, ...]
    additions: tuple[tuple[int, int], ...]
    """Rows to add to, and what to add to them, in this order."""
    kept: tuple[int, ...]
    """Rows that are left then."""
    are_copies: bool = False
    """Whether members have the same row: nothing is added up, and each takes its part of it further."""

    @classmethod
    def of(cls, members: Sequence[Sequence[Subtree]]) -> LevelPlan:
        """Of subtrees that follow each other: those that are halves of one are added up."""
        additions = []
        left: list[tuple[Subtree, int]] = []
        for number, handed_in in enumerate(subtree for member in members for subtree in member):
            subtree, row = handed_in, number
            while left and left[-1][0].joins(subtree):
                (half, half_row) = left.pop()
                additions.append((half_row, row))
                subtree, row = half.joined(), half_row
            left.append((subtree, row))
        return cls(tuple(map(len, members)), tuple(additions), tuple(row for _, row in left))

    @classmethod
    def in_any_order(cls, num_members: int) -> LevelPlan:
        """Of one row each, whose sum does not depend on the order: whole numbers."""
        return cls((1,) * num_members, tuple((0, row) for row in range(1, num_members)), (0,))

    @classmethod
    def of_copies(cls, num_members: int) -> LevelPlan:
        """Of one row that all members have."""
        return cls((1,) * num_members, (), (0,), are_copies=True)

    @property
    def num_received(self) -> int:
        """How many rows a member has its part of."""
        return 1 if self.are_copies else sum(self.rows_of_members)

    @property
    def is_one_row_each(self) -> bool:
        return set(self.rows_of_members) == {1}


def level_plans(level_sizes: Sequence[int], rank: int, bounds: Sequence[int], *, height: int) -> list[LevelPlan]:
    """What this rank does on each level, innermost first; the last one leaves the whole tree, or its islands.

    Args:
        level_sizes: ranks that meet on each level, innermost first; together all ranks.
        bounds: rank r's stretch of leaves begins at the r-th, and ends where the next one's begins.
        height: of the largest subtrees.
    """
    plans = []
    for level, size in enumerate(level_sizes):
        # A member stands for the ranks that met below it, which lie next to each other.
        of_member = math.prod(level_sizes[:level])
        first = rank // (of_member * size) * of_member * size
        ends = [bounds[first + member * of_member] for member in range(size + 1)]
        stretches: Iterable[range] = map(range, ends, ends[1:])
        plans.append(LevelPlan.of([list(subtrees(leaves, height=height)) for leaves in stretches]))
    return plans
