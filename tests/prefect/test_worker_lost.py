"""A worker that is killed takes its flow, guards, agents and ranks along: nobody else could stop them."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_killed_worker_leaves_no_process(deployed: Any, training_run: str, worker: subprocess.Popen[bytes]) -> None:
    before = deployed.processes()
    os.kill(worker.pid, signal.SIGKILL)
    assert len(before) > 5
    wait_until(lambda: len(deployed.processes()) == 1, what="the end of all but the server")
    ledger = deployed.folder / "workspace" / "ledger" / training_run / "flow.jsonl"
    assert '"event":"worker.lost"' in ledger.read_text()
