"""Whoever comes in whatever order: no gradient is too stale, nobody waits for ever, and all work is done once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.training.ranks.arrival_order import ArrivalOrder, Grant


@given(
    num_workers=st.integers(1, 6),
    staleness=st.integers(0, 9),
    num_updates=st.integers(1, 40),
    halted=st.booleans(),
    draw=st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_the_bound_holds_and_all_updates_are_made_once(
    num_workers: int, staleness: int, num_updates: int, halted: bool, draw: random.Random
) -> None:
    order = ArrivalOrder(7, 7 + num_updates, staleness=staleness)
    granted: dict[int, Grant] = {}
    ready, updates, works, told = list(range(num_workers)), [], [], 0

    def ask(worker: int, takes_weights: bool) -> None:
        nonlocal told
        for grant in order.ask(worker, takes_weights=takes_weights):
            if grant.takes_weights and grant.number < 0:
                told += 1
            elif grant.takes_weights:
                works.append(grant.number)
                granted[grant.worker] = grant
            else:
                updates.append(grant)
                ready.append(grant.worker)

    while ready or granted:
        # A halted worker has taken weights, and comes back when nobody else can go on.
        working = [worker for worker in granted if not (halted and worker == 0 and (ready or len(granted) > 1))]
        if ready and (not working or draw.random() < 0.5):
            ask(ready.pop(draw.randrange(len(ready))), True)
        else:
            worker = draw.choice(working)
            del granted[worker]
            ask(worker, False)
    assert told == num_workers
    assert sorted(works) == list(range(7, 7 + num_updates)) == [grant.number for grant in updates]
    assert all(0 <= grant.number - grant.version <= staleness for grant in updates)


def test_others_make_as_many_updates_beside_a_halted_worker_as_the_bound_allows() -> None:
    order = ArrivalOrder(0, 100, staleness=5)
    (halted,) = order.ask(0, takes_weights=True)
    assert halted.version == 0
    made = 0
    while order.ask(1, takes_weights=True) and order.ask(1, takes_weights=False):
        made += 1
    assert made == 5
    freed = order.ask(0, takes_weights=False)
    assert [(grant.worker, grant.takes_weights, grant.number - grant.version) for grant in freed] == [
        (0, False, 5),
        (1, False, 1),
    ]


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_no_more_take_weights_at_once_than_could_all_come_in_time(staleness: int) -> None:
    order = ArrivalOrder(0, 100, staleness=staleness)
    taken = [grant for worker in range(5) for grant in order.ask(worker, takes_weights=True)]
    assert len(taken) == staleness + 1
