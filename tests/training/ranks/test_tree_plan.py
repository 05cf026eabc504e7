"""However ranks share the leaves of a tree, they make the sums of one tree."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from headway.training.ranks.tree_plan import LevelPlan, Subtree, level_plans, subtrees


def whole(first: int, height: int) -> object:
    """The nodes of a subtree, as pairs of pairs."""
    if not height:
        return first
    half = 1 << height - 1
    return (whole(first, height - 1), whole(first + half, height - 1))


@st.composite
def shared(draw):
    """A height, sizes of levels, and where each rank's stretch begins."""
    height = draw(st.integers(0, 6))
    num_ranks = draw(st.integers(1, 1 << height))
    inner = draw(st.sampled_from([size for size in range(1, num_ranks + 1) if num_ranks % size == 0]))
    cuts = sorted(draw(st.sets(st.integers(1, (1 << height) - 1), min_size=num_ranks - 1, max_size=num_ranks - 1))
                  if num_ranks > 1 else ())  # fmt: skip
    sizes = draw(st.sampled_from([[num_ranks], [inner, num_ranks // inner]]))
    return height, sizes, [0, *cuts, 1 << height]


def met(plan: LevelPlan, members: list[list[object]]) -> list[object]:
    """What is left of the members' rows."""
    assert plan.rows_of_members == tuple(map(len, members))
    rows = [row for member in members for row in member]
    for into, added in plan.additions:
        rows[into] = (rows[into], rows[added])
    return [rows[number] for number in plan.kept]


@given(shared())
def test_ranks_with_any_stretches_on_any_levels_make_up_the_one_tree(drawn):
    height, sizes, bounds = drawn
    num_ranks = len(bounds) - 1
    stretches = [range(*bounds[rank : rank + 2]) for rank in range(num_ranks)]
    rows = [[whole(*subtree) for subtree in subtrees(leaves, height=height)] for leaves in stretches]
    for level, size in enumerate(sizes):
        stride = math.prod(sizes[:level])
        found = []
        for rank in range(num_ranks):
            first = rank - rank // stride % size * stride
            members = [rows[first + member * stride] for member in range(size)]
            found.append(met(level_plans(sizes, rank, bounds, height=height)[level], members))
        rows = found
    assert rows == [[whole(0, height)]] * num_ranks


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 9))
def test_a_stretch_is_cut_into_the_fewest_subtrees(first, length, height):
    found = list(subtrees(range(first, first + length), height=height))
    leaves = [leaf for each in found for leaf in range(each.first, each.first + (1 << each.height))]
    assert leaves == list(range(first, first + length))
    assert all(each.first % (1 << each.height) == 0 and each.height <= height for each in found)
    assert not any(left.height < height and left.joins(right) for left, right in itertools.pairwise(found))


def test_an_even_share_is_one_row_and_an_island_is_handed_in_by_itself():
    plan = LevelPlan.of([[Subtree(rank, 0)] for rank in range(4)])
    assert plan.is_one_row_each and plan.kept == (0,)
    assert list(subtrees(range(8, 16), height=2)) == [Subtree(8, 2), Subtree(12, 2)]
    assert not LevelPlan.of([[Subtree(0, 2), Subtree(4, 1)], [Subtree(6, 1)]]).is_one_row_each
