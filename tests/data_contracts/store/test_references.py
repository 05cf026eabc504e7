"""What is reached stays, whatever the graph; what goes, goes after all that name it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.references import chain, reached, references_in, removal_order

NAMES = "abcdefghij"
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES), max_size=4), max_size=10)
LAYERED = GRAPHS.map(lambda graph: {name: {each for each in message if each > name} for name, message in graph.items()})


@given(GRAPHS, st.sets(st.sampled_from(NAMES), max_size=3))
def test_exactly_what_a_root_leads_to_is_reached_and_the_chain_says_how(graph, roots) -> None:
    why = reached(dict.fromkeys(roots, "root"), lambda name: graph.get(name, ()))
    expected = set(roots)
    while more := {each for name in expected for each in graph.get(name, ())} - expected:
        expected |= more
    assert set(why) == expected
    for name in expected:
        *steps, reason = chain(why, name)
        assert reason == "root" and steps[0] == name and steps[-1] in roots
        assert all(needed in graph[needing] for needed, needing in pairwise(steps))
    assert chain(why, "nobody") == []


@given(LAYERED, st.sets(st.sampled_from(NAMES)))
def test_nothing_goes_before_what_says_its_name(graph, garbage) -> None:
    order = removal_order(garbage, lambda name: graph.get(name, ()))
    assert sorted(order) == sorted(garbage)
    for name in garbage:
        for message in graph.get(name, set()) & garbage:
            assert order.index(name) < order.index(message)


@given(GRAPHS, st.sets(st.sampled_from(NAMES)))
def test_things_that_name_each_other_go_once_each(graph, garbage) -> None:
    assert sorted(removal_order(garbage, lambda name: graph.get(name, ()))) == sorted(garbage)


def test_names_are_found_in_fields_that_nobody_has_thought_of_yet() -> None:
    a, b, c = "a" * 64, "b" * 64, "c" * 64
    message = references_in(
        {"later": [{"path": "x/y", "n": 1}, {"kind": "run", "sha256": a}], "text": f"code/{b}.zip", c: {"path": 3}}
    )
    assert message.paths == {"x/y"}
    assert message.links == {Link(kind="run", sha256=a)}
    assert message.digests == {a, b, c}
