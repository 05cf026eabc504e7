"""A process that a worker started is that of one flow run, and ends when it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.orphan import STARTED_BY_A_WORKER
from tests.waiting import DEADLINE_S

REPOSITORY = Path(__file__).resolve().parents[2]
FLOW = """
import gc
from flows.orphan import ended_with_worker
with ended_with_worker(print):
    loaded = len(gc.get_objects())
print(gc.get_freeze_count() > loaded / 2)
"""


@pytest.mark.parametrize(("environment", "is_spared"), [({STARTED_BY_A_WORKER: "1"}, "True"), ({}, "False")])
def test_its_end_is_not_held_up_by_a_last_look_through_all_that_was_loaded(
    environment: dict[str, str], is_spared: str
) -> None:
    ours = {name: value for name, value in os.environ.items() if name != STARTED_BY_A_WORKER} | environment
    done = subprocess.run(
        [sys.executable, "-c", FLOW], cwd=REPOSITORY, env=ours, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout.split() == [is_spared], done.stderr
