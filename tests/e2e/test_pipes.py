"""What other programs put in the place of a workspace's files keeps no command waiting that only looks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from headway.data_contracts.store.errors import NotReproduced
from tests.e2e.project import Project, let_go_of_databases

WITHIN_S = 60  # a plan that misses how long training took rehearses it
WINDOWS = """
windows:
  time_zone: UTC
  open: [{start: "22:00", end: "04:00"}]
"""
LOOKS = (
    ("status",),
    ("logs",),
    ("history", "tiny"),
    ("shards", "tiny.yaml"),
    ("windows", "tiny.yaml"),
    ("plan", "tiny.yaml"),
    ("verify", "models:/tiny@champion"),
)
NAMES_OF_THEIR_OWN = re.compile(r"[0-9a-f]{32,}|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16}|\d+")
Here = Callable[..., subprocess.CompletedProcess[str]]


def one_of_each_kind(workspace: Path) -> list[Path]:
    """Files whose paths differ by digests and numbers alone are of one kind."""
    kinds = {
        NAMES_OF_THEIR_OWN.sub("#", path.relative_to(workspace).as_posix()): path
        for path in sorted(workspace.rglob("*"), reverse=True)
        if path.is_file() and not path.is_symlink()
    }
    return [kinds[kind] for kind in sorted(kinds)]


@pytest.fixture
def look(project: Project, here: Here) -> Iterator[Callable[..., str]]:
    """What is wrong with a command's answer; empty for an answer or an error of ours, within the time."""
    late: list[int] = []

    def too_long(number: int, _frame: FrameType | None) -> None:
        late.append(number)
        raise TimeoutError("it hangs")

    def run(*arguments: str) -> str:
        late.clear()
        signal.alarm(WITHIN_S)
        try:
            done = here(*arguments, "--workspace", str(project.workspace))
        finally:
            signal.alarm(0)
        if late:
            return "hangs"
        return "" if 0 <= done.returncode <= NotReproduced.exit_code else f"exit {done.returncode}: {done.stderr}"

    before = signal.signal(signal.SIGALRM, too_long)
    yield run
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_in_the_place_of_any_file_is_an_answer_or_an_error_and_keeps_nobody_waiting(
    project: Project, here: Here, look: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.pipeline.write_text(project.pipeline.read_text() + WINDOWS)
    for arguments in LOOKS:
        assert (done := here(*arguments, "--workspace", str(project.workspace))).returncode == 0, (arguments, done)
    kinds, wrong, aside = one_of_each_kind(project.workspace), {}, project.root / "aside"
    assert len(kinds) > 40
    for path in kinds:
        path.rename(aside)
        os.mkfifo(path)
        try:
            for arguments in LOOKS:
                if message := look(*arguments):
                    wrong[arguments[0], path.relative_to(project.workspace).as_posix()] = message
        finally:
            aside.replace(path)
            if path.suffix == ".db":
                let_go_of_databases()
    assert wrong == {}
