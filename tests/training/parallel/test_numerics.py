"""Every parallelism trains the model that one process trains."""

from __future__ import annotations

import pytest


def close(answer, alone, tolerance=2e-5):
    assert answer["losses"] == pytest.approx(alone["losses"], rel=tolerance)
    assert answer["norms"] == pytest.approx(alone["norms"], rel=50 * tolerance)
    assert answer["proof"] == pytest.approx(alone["proof"], rel=tolerance)
    assert answer["first"] == alone["first"], "the initial weights differ"


def test_two_replicas_of_one_micro_batch_each_are_one_process_bit_for_bit(train):
    alone = train(1, micro=8)
    assert train(2, micro=8) == alone
    exact = train(2, micro=8, parallel={"mode": "exact"})
    assert exact.pop("norms") == pytest.approx(alone["norms"], rel=1e-6), "its norm is added up in another order"
    assert exact == {name: value for name, value in alone.items() if name != "norms"}


def test_four_replicas_follow_one_process(train):
    close(train(4), train(1))
