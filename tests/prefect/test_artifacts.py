"""Artifacts are for people: whatever Prefect makes of them, the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.artifacts import artifact_key, show_markdown

TOY = Path(__file__).parent / "toys" / "artifacts_refused.py"


def test_any_words_make_a_key_that_prefect_takes() -> None:
    assert artifact_key("My_Model v2", "evaluation") == "my-model-v2-evaluation"


def test_outside_a_flow_nothing_is_shown_and_nothing_fails() -> None:
    show_markdown("key", "text", "nobody looks")


@pytest.mark.slow
def test_a_flow_whose_artifacts_are_all_refused_completes_and_says_so(service: Any) -> None:
    done = subprocess.run(
        (sys.executable, str(TOY)), env=service.environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("An artifact could not be written") == 4
