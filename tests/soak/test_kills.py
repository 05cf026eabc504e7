"""A handful of random kills; `make soak` makes two hundred."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.kills import Soak

pytestmark = pytest.mark.long


def test_ranks_killed_at_random_moments_cost_time_and_no_bits_and_no_sample(tmp_path: Path) -> None:
    with Soak(tmp_path, random.randrange(1 << 31), steps=60, worlds=(1, 2)) as soak:
        evidence = soak.run(kills=5)
    assert evidence.failures == [], evidence.as_json()
    assert evidence.kills == 5 and evidence.runs >= 1
