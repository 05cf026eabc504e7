"""A process that a worker started is that of one flow run, and ends when it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.flows.prefect_api.worker_watchdog import STARTED_BY_A_WORKER
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).resolve().parents[3]
FLOW = """
import gc, signal, sys, time
from headway.flows.prefect_api.worker_watchdog import ended_with_worker
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    with ended_with_worker(lambda: print("lost")):
        loaded = len(gc.get_objects())
        print("loaded", flush=True)
        if sys.argv[1] == "waits":
            while True:
                time.sleep(0.01)  # not `pause`: the signal may come just before it
finally:
    print("spared" if gc.get_freeze_count() > loaded / 2 else "looked through", flush=True)
"""
WORKER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
OURS = {name: value for name, value in os.environ.items() if name != STARTED_BY_A_WORKER}


@pytest.mark.parametrize("environment", [{STARTED_BY_A_WORKER: "1"}, {}])
def test_its_end_is_in_order_where_nobody_waits_for_it(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLOW, "ends"],
        cwd=REPOSITORY,
        env=OURS | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.split("\n") == ["loaded", "looked through", ""], done.stderr


def test_with_its_worker_killed_its_end_is_not_held_up_by_a_last_look_through_all_that_was_loaded() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, FLOW, "waits"],
        cwd=REPOSITORY,
        env=OURS | {STARTED_BY_A_WORKER: "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None and worker.stdout.readline() == "loaded\n"
    worker.kill()
    message, _ = worker.communicate(timeout=DEADLINE_S)
    assert message.split() == ["lost", "spared"]
