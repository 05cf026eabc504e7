"""Spans painted over each other, beside every instant asked one by one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.flows.accounts.painting import Span, paint

pytestmark = pytest.mark.unit
MOMENTS = st.integers(-3, 20).map(float)
NUM_SPANS = 100_000


def innermost(spans: list[Span[str]], at_s: float) -> str:
    covering = [span for span in spans if span[1] <= at_s < span[2]]
    # The last to begin; of two that began together the first to end; of twins the later one.
    return max(enumerate(covering), key=lambda each: (each[1][1], -each[1][2], each[0]))[1][0] if covering else "ground"


@given(st.lists(st.tuples(st.sampled_from("abc"), MOMENTS, MOMENTS), max_size=12))
def test_every_instant_belongs_to_the_span_that_began_last(spans: list[Span[str]]) -> None:
    painted = paint(spans, 0.0, 15.0, ground="ground")
    for begin_s, end_s, name in zip(painted.edges, painted.edges[1:], painted.of, strict=False):
        assert painted.names[name] == innermost(spans, (begin_s + end_s) / 2)
    assert painted.edges[0] == 0.0 and painted.edges[-1] == 15.0
    assert sum(painted.seconds().values()) == pytest.approx(15.0)


def test_spans_within_each_other_cost_about_what_spans_beside_each_other_do() -> None:
    beside = [("a", float(each), each + 0.5) for each in range(NUM_SPANS)]
    within = [("a", float(each), float(4 * NUM_SPANS - each)) for each in range(NUM_SPANS)]
    fewer = within[: NUM_SPANS // 8]
    assert seconds_for(within) < 4 * 8 * seconds_for(fewer), "painting is quadratic"
    assert seconds_for(within) < 10 * seconds_for(beside)


def seconds_for(spans: list[Span[str]]) -> float:
    def once() -> float:
        started_s = time.process_time()
        paint(spans, 0.0, 1e9, ground="ground")
        return time.process_time() - started_s

    return min(once() for _ in range(3))
