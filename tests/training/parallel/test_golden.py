"""Losses and collectives are those that were written down: a change of either is a decision.

A failing comparison shows the new values; `golden.json` is edited by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


@pytest.mark.process
def test_one_process_reaches_the_losses_written_down(train):
    assert train(1)["losses"] == pytest.approx(GOLDEN["losses"], rel=1e-5)


@pytest.mark.parametrize("case", GOLDEN["collectives"], ids=lambda case: str(case["parallel"]))
def test_a_step_calls_each_collective_as_often_as_written_down(train, case):
    """`micro` 8 is one micro-batch a rank, 4 two: accumulating exchanges no gradient twice."""
    answer = train(
        2, micro=case["micro"], steps=1, count_collectives=True, parallel={"mode": "fast", **case["parallel"]}
    )
    assert answer["local_collectives"] == case["calls"]
