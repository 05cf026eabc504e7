"""What other programs put in the place of a workspace's files keeps no command waiting that only looks."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from headway.data_contracts.store.errors import NotReproduced
from tests.e2e.opened_files import opened_files
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
AS_A_PLAN = {"windows"}
"""It asks what a run would need by the code of a plan, whose files are that one's here and both's in `make soak`."""
NAMES_OF_THEIR_OWN = re.compile(r"[0-9a-f]{32,}|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16}|\d+")
Here = Callable[..., subprocess.CompletedProcess[str]]


def kind_of(path: Path, workspace: Path) -> str:
    """Files whose paths differ by digests and numbers alone are of one kind."""
    return NAMES_OF_THEIR_OWN.sub("#", path.relative_to(workspace).as_posix())


def files_of(workspace: Path) -> list[Path]:
    return sorted(path for path in workspace.rglob("*") if path.is_file() and not path.is_symlink())


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


def test_what_another_process_or_a_library_opens_is_seen_and_what_is_only_looked_for_is_not(tmp_path: Path) -> None:
    by_us, by_another, by_sqlite, by_nobody = paths = [tmp_path / name for name in "abcd"]
    sqlite3.connect(by_sqlite).executescript("CREATE TABLE t (x)")
    for path in (by_us, by_another, by_nobody):
        path.touch()
    with opened_files(paths) as opened:
        by_us.read_bytes()
        subprocess.run(["cat", by_another], check=True)
        sqlite3.connect(by_sqlite).execute("SELECT * FROM t")
        assert by_nobody.is_file() and by_nobody in list(tmp_path.iterdir())
    assert opened == {by_us, by_another, by_sqlite}


# What a command does not open cannot keep it waiting. That this holds of files it only looks for is for `make soak`.
@pytest.mark.long
@pytest.mark.parametrize(
    "every_kind", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["opened", "every kind"]
)
@pytest.mark.parametrize("arguments", LOOKS, ids=lambda arguments: arguments[0])
def test_a_pipe_in_the_place_of_any_file_is_an_answer_or_an_error_and_keeps_nobody_waiting(
    project: Project,
    here: Here,
    look: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    every_kind: bool,
) -> None:
    monkeypatch.chdir(project.root)
    project.pipeline.write_text(project.pipeline.read_text() + WINDOWS)
    asked, opened, wrong, aside = (*arguments, "--workspace", str(project.workspace)), set(), {}, project.root / "aside"
    for _ in range(2):  # the second time with what the first left behind
        with opened_files(files_of(project.workspace)) as meanwhile:
            assert (done := here(*asked)).returncode == 0, done
        opened |= meanwhile
    chosen = sorted(opened, reverse=True)
    assert chosen, "what it opens is not seen"
    if arguments[0] in AS_A_PLAN and not every_kind:
        with opened_files(files_of(project.workspace)) as by_a_plan:
            assert here("plan", "tiny.yaml", "--workspace", str(project.workspace)).returncode == 0
        asked_of_it = {kind_of(path, project.workspace) for path in by_a_plan}
        chosen = [path for path in chosen if kind_of(path, project.workspace) not in asked_of_it]
        assert chosen, "it opens nothing of its own"
    if every_kind:
        for each in LOOKS:  # which leave files behind, too
            assert (done := here(*each, "--workspace", str(project.workspace))).returncode == 0, (each, done)
        chosen = [*reversed(files_of(project.workspace)), *chosen]
    kinds = {kind_of(path, project.workspace): path for path in chosen}
    assert len(kinds) > 40 or not every_kind
    for kind, path in sorted(kinds.items()):
        path.rename(aside)
        os.mkfifo(path)
        try:
            if message := look(*arguments):
                wrong[kind] = message
        finally:
            aside.replace(path)
            if path.suffix == ".db":
                let_go_of_databases()
    assert wrong == {}
