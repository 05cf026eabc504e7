"""The ledger's vocabulary: what is recorded is declared, what is declared is recorded, and the page says so."""

from __future__ import annotations

import ast

import pytest

from docs.architecture.events import PAGE, nodes, page, sites
from headway.training.observe.events import BEGIN, EVENTS, undeclared

MADE_UP = {"rank.stopped", "rank.failed", *(name for name in EVENTS if name.startswith("stage."))}
"""Names that are put together as the code runs."""


@pytest.fixture(autouse=True, scope="module")
def parsed_once() -> None:
    """At no single test's cost."""
    sites()


def test_every_line_that_records_an_event_says_what_is_declared() -> None:
    for site in sites():
        if site.event:
            assert undeclared(dict.fromkeys({"event", *site.fields}, "") | {"event": site.event}) == "", site


def test_what_is_recorded_as_a_span_is_declared_as_one() -> None:
    for site in sites():
        if site.method in ("span", "elapsed") and site.event:
            assert EVENTS[site.event].is_span, site
        elif site.event and not site.event.endswith(BEGIN):
            assert not EVENTS[site.event].is_span, site


def test_every_event_that_is_declared_is_recorded_somewhere() -> None:
    texts = {
        node.value
        for path, node in nodes()
        if path.name != "events.py" and isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(EVENTS) - texts - MADE_UP == set()


def test_an_event_or_a_field_that_is_not_declared_is_named() -> None:
    assert undeclared({"event": "flow.begun"}) == "event flow.begun"
    assert undeclared({"event": "run.lost.begin"}) == "event run.lost.begin", "it is no span"
    assert undeclared({"event": "run.lost", "unix_s": 1.0, "rank": 0, "message": "", "cost": 1}) == "run.lost: cost"
    assert undeclared({"event": "attempt.start.begin", "unix_s": 1.0, "attempt": 1}) == ""
    assert undeclared({"event": "attempt.start", "duration_s": 1.0, "outcome": "ok", "attempt": 1}) == ""


def test_the_page_of_events_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "python -m docs.architecture.events"
