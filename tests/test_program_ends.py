"""A program that a fork runs ends as it would have alone, and whoever forked it goes on nowhere but in itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.training.launch.hosts.probe import HEADWAY_HOME

pytestmark = pytest.mark.process

PROGRAM = """
import sys
from tests.program_ends import end_with
try:
    end_with(lambda: {body})
finally:
    print("came back")
"""


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("None", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(75)", 75, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_program_ends_with_its_own_code_and_words_and_nothing_comes_after(body: str, code: int, words: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    ended = subprocess.run(command, cwd=HEADWAY_HOME, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.endswith(words) and bool(ended.stderr) == bool(words)
