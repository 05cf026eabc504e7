"""Trace ids follow from the flow run's, or are those of whoever started it, by W3C's rules."""

from __future__ import annotations

import pytest

from headway.training.observe.trace_context import TraceContext, flow_trace, given_parent, parse_traceparent, span_id

FLOW_RUN = "af91d8ec-7cb3-4fd4-bed9-d2ef69bba001"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_without_a_parent_the_trace_is_called_as_the_flow_run_is() -> None:
    root = flow_trace(FLOW_RUN)
    assert root.trace_id == FLOW_RUN.replace("-", "")
    assert root == flow_trace(FLOW_RUN), "whoever asks, and when"
    assert parse_traceparent(root.header) == root


def test_with_a_parent_the_trace_is_the_parents_and_flow_runs_in_it_are_told_apart() -> None:
    parent = parse_traceparent(PARENT)
    first, second = flow_trace(FLOW_RUN, parent), flow_trace("another", parent)
    assert first.trace_id == second.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len({first.span_id, second.span_id, "00f067aa0ba902b7"}) == 3
    assert first.is_sampled
    assert not flow_trace(FLOW_RUN, parse_traceparent(f"{PARENT[:-2]}00")).is_sampled


@pytest.mark.parametrize(
    "header",
    [
        *("", "00", PARENT[:-3], f"{PARENT}-more", PARENT.upper(), f"ff{PARENT[2:]}", f"{PARENT}\n0"),
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    ],
)
def test_what_is_no_header_is_no_parent(header: str) -> None:
    assert parse_traceparent(header) is None


def test_a_later_version_may_say_more() -> None:
    assert parse_traceparent(f"01{PARENT[2:]}-more") == parse_traceparent(PARENT)


def test_what_is_said_of_a_flow_run_goes_before_the_environment_of_its_process() -> None:
    own = TraceContext("1" * 32, "2" * 16)
    assert given_parent({"TRACEPARENT": PARENT}, own.header) == own
    assert given_parent({"traceparent": PARENT}, "none") == parse_traceparent(PARENT)
    assert given_parent({"TRACEPARENT": own.header, "traceparent": PARENT}) == own
    assert given_parent({}) is None


def test_spans_have_ids_by_their_place() -> None:
    root = flow_trace(FLOW_RUN)
    places = [("a",), ("b",), ("a", 1), ("a", 2)]
    assert len({span_id(root, *place) for place in places} | {root.span_id}) == 5
    assert all(len(bytes.fromhex(span_id(root, *place))) == 8 for place in places)
    assert span_id(root, "a") != span_id(flow_trace("another"), "a")
