"""Artifacts are for people: whatever Prefect makes of them, the run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from headway.tasks.core.artifacts import artifact_key, show_markdown
from tests.waiting import wait_until
from tests.warm_programs import run_program

TOYS = Path(__file__).parent / "toys"


def test_any_words_make_a_key_that_prefect_takes() -> None:
    assert artifact_key("My_Model v2", "evaluation") == "my-model-v2-evaluation"


def test_outside_a_flow_nothing_is_shown_and_nothing_fails() -> None:
    show_markdown("key", lambda: "text", "nobody looks")


def test_a_flow_whose_artifacts_are_all_refused_completes_and_says_so(service: Any) -> None:
    # Fresh: a fork has the logging of the process that it is one of.
    command = (sys.executable, TOYS / "artifacts_refused.py")
    done = subprocess.run(command, env=service.environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("An artifact could not be written") == 5


def test_a_server_that_is_away_holds_up_nobody_who_moves_a_progress_bar(service: Any) -> None:
    servers = service.processes()
    command = (sys.executable, TOYS / "progress_while_away.py", *servers)
    # The client's own patience would end only after the test's.
    patient = service.environment | {"PREFECT_API_REQUEST_TIMEOUT": "1000"}
    try:
        done = run_program(command, env=patient, timeout=300)
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    assert done.returncode == 0 and "moved" in done.stdout, done.stderr

    def progress() -> float:
        found = service.api("artifacts/filter", {"artifacts": {"key": {"any_": ["away"]}}})
        return float(found[0]["data"])

    wait_until(lambda: progress() == 100, 120, "the end of the bar")
