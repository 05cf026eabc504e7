"""Whom a federated round draws, and whose rows are in which part of a batch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.communication_spec import FederatedSpec, SyncSpec
from headway.training.data.order.client_order import ClientOrder, ClientRounds, Clients


def rounds_of(
    num_rows: list[int], *, every_steps: int = 3, drawn: int = 2, seed: int = 5, lost: float = 0
) -> ClientRounds:
    sync = SyncSpec(every_steps=every_steps, islands=drawn, federated=FederatedSpec(lost_fraction=lost))
    clients = Clients(tuple(f"client {number}" for number in range(len(num_rows))), tuple(num_rows))
    return ClientRounds(clients, sync, seed=seed)


@given(
    num_rows=st.lists(st.integers(1, 30), min_size=2, max_size=9),
    every_steps=st.integers(1, 4),
    part_rows=st.integers(1, 6),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60, deadline=None)
def test_each_part_of_a_batch_goes_through_all_rows_of_its_client_before_one_comes_again(
    num_rows: list[int], every_steps: int, part_rows: int, seed: int
) -> None:
    rounds = rounds_of(num_rows, every_steps=every_steps, seed=seed)
    order = ClientOrder(rounds, batch_rows=2 * part_rows, seed=seed)
    ends = np.cumsum(num_rows)
    found = order.rows(np.arange(4 * every_steps * 2 * part_rows)).reshape(4, every_steps, 2, part_rows)
    for number, of_round in enumerate(found):
        for part, client in enumerate(rounds.drawn(number).tolist()):
            own = of_round[:, part].reshape(-1) - (ends[client] - num_rows[client])
            assert own.min() >= 0 and own.max() < num_rows[client], "rows of its own alone"
            for first in range(0, len(own), num_rows[client]):
                once = own[first : first + num_rows[client]]
                assert len(set(once.tolist())) == len(once)


@given(cuts=st.lists(st.integers(1, 119), max_size=5), seed=st.integers(0, 2**40), share=st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_any_part_of_it_may_be_asked_for_at_any_time(cuts: list[int], seed: int, share: int) -> None:
    order = ClientOrder(rounds_of([5, 1, 9, 40], seed=seed), batch_rows=8, seed=seed)
    whole = order.rows(np.arange(120))
    ends = [0, *sorted(set(cuts)), 120]
    parts = [order.rows(np.arange(first, last)) for first, last in itertools.pairwise(ends)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(order.rows(np.arange(0, 120, share)), whole[::share])


def test_a_client_that_is_drawn_again_goes_through_its_rows_in_another_order() -> None:
    rounds = rounds_of([20, 20], every_steps=1)
    found = ClientOrder(rounds, batch_rows=40, seed=3).rows(np.arange(80)).reshape(2, 2, 20)
    first, second = ({int(part.min()) // 20: part.tolist() for part in of_round} for of_round in found)
    assert first.keys() == second.keys() == {0, 1}
    assert all(first[client] != second[client] for client in first)


def test_a_round_draws_no_client_twice_and_all_about_as_often() -> None:
    rounds = rounds_of([3] * 10, drawn=4)
    drawn = np.stack([rounds.drawn(number) for number in range(3000)])
    assert all(len(set(row)) == 4 for row in drawn.tolist())
    counts = np.bincount(drawn.reshape(-1), minlength=10)
    assert abs(counts - 1200).max() < 6 * np.sqrt(3000 * 0.4 * 0.6)


def test_about_the_share_of_answers_is_lost_that_was_asked_for_and_none_without() -> None:
    lost = [rounds_of([3] * 10, drawn=4, lost=0.3).lost(number) for number in range(3000)]
    assert abs(np.mean(lost) - 0.3) < 0.02
    assert not any(rounds_of([3] * 10, drawn=4).lost(number).any() for number in range(100))


def test_a_group_without_training_rows_is_no_client_and_too_few_are_refused_by_name() -> None:
    groups = {"north": 4, "empty": 0, "south": 3}
    sync = SyncSpec(every_steps=2, islands=2, federated=FederatedSpec())
    assert Clients.of(groups, sync) == Clients(("north", "south"), (4, 3))
    with pytest.raises(ConfigError, match="4 clients are drawn for each round, and there are 2"):
        Clients.of(groups, sync.model_copy(update={"islands": 4}))
