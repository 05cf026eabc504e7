"""A worker that is killed takes its flow, guards, agents and ranks along: nobody else could stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import pytest

pytestmark = pytest.mark.slow

GONE_WITHIN_S = 10.0


def test_a_killed_worker_leaves_no_process(deployed: Any, training_run: str, worker: subprocess.Popen[bytes]) -> None:
    before = deployed.processes()
    os.kill(worker.pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_WITHIN_S
    while len(left := deployed.processes()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    # The server alone goes on.
    assert len(left) == 1 and len(before) > 5, (before, left)
    ledger = deployed.folder / "workspace" / "ledger" / training_run / "flow.jsonl"
    assert '"event":"worker.lost"' in ledger.read_text()
