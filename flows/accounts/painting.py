"""Spans painted over each other: every instant belongs to the innermost, which is the one that began last."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name", bound=str)
Span = tuple[Name, float, float]
"""Name, begin and end; by any clock that all share."""


class Painted(NamedTuple, Generic[Name]):
    """Stretches of time, none of which overlap, and the name of each."""

    names: list[Name]
    edges: NDArray[np.float64]
    """Of all stretches, shape (n + 1,): each ends where the next begins."""
    of: NDArray[np.int32]
    """Each stretch's place in `names`, shape (n,)."""

    def seconds(self, weights: NDArray[np.float64] | None = None) -> dict[Name, float]:
        """By name, the largest first; names without a stretch are left out.

        Args:
            weights: what an instant of each stretch counts, shape (n,).
        """
        lengths = np.diff(self.edges) if weights is None else np.diff(self.edges) * weights
        sums = np.bincount(self.of, weights=lengths, minlength=len(self.names)).tolist()
        found = {name: total for name, total in zip(self.names, sums, strict=True) if total > 0}
        return dict(sorted(found.items(), key=lambda part: -part[1]))


def paint(spans: Iterable[Span[Name]], begin_s: float, end_s: float, *, ground: Name) -> Painted[Name]:
    """Give every instant between two times a name.

    Args:
        ground: of what no span covers.
    """
    names = {ground: 0}
    # Arrays, not lists of tuples: a long run has millions of spans.
    named, begins_s, ends_s = array("i"), array("d"), array("d")
    for name, span_begin_s, span_end_s in spans:
        if span_end_s > begin_s and span_begin_s < end_s:
            named.append(names.setdefault(name, len(names)))
            begins_s.append(span_begin_s)
            ends_s.append(span_end_s)
    begins, ends = np.frombuffer(begins_s), np.frombuffer(ends_s)
    edges = np.unique(np.clip(np.concatenate([[begin_s, end_s], begins, ends]), begin_s, end_s))
    return Painted(list(names), edges, _innermost(np.frombuffer(named, np.int32), begins, ends, edges))


def _innermost(
    named: NDArray[np.int32], begins: NDArray[np.float64], ends: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Which span's name holds over each stretch between neighbouring edges; 0 where there is none.

    Every span is two blocks of stretches, a power of two wide, that overlap. Blocks are halved from the widest down,
    and keep the innermost span that covers them: n log n, however spans that somebody made up lie in each other.
    """
    firsts, lasts = (np.searchsorted(edges, np.clip(moments, edges[0], edges[-1])) for moments in (begins, ends))
    # Outermost first: earlier begin, then later end, then as they came. What ends before it begins covers nothing.
    order = np.lexsort((-ends, begins))
    order = order[firsts[order] < lasts[order]]
    firsts, lasts, depths = firsts[order], lasts[order], np.arange(len(order))
    levels = np.frexp(lasts - firsts)[1] - 1
    deepest = np.full(len(edges) - 1, -1)
    for level in range(levels.max(initial=0), -1, -1):
        width = 1 << level
        deepest[width:] = np.maximum(deepest[width:], deepest[:-width])
        here = levels == level
        for begin in (firsts[here], lasts[here] - width):
            np.maximum.at(deepest, begin, depths[here])
    found: NDArray[np.int32] = np.append(named[order], np.int32(0))[deepest]
    return found
