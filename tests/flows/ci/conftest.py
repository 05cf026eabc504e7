"""A tiny project in a git checkout, and `headway ci` run in it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headway.flows.cli.command_line import run as run_command
from tests.flows.tiny_pipeline import PIPELINE

CONTRACT = "name: tiny\nversion: 1.0.0\ndescription: none\ncolumns:\n  text: {type: string, nullable: true}\n"


class Answer(NamedTuple):
    code: int
    report: dict[str, Any]
    page: str
    """The Markdown summary."""
    junit: ET.Element
    err: str

    @property
    def outcomes(self) -> dict[str, str]:
        return {result["check"]: result["outcome"] for result in self.report["results"]}

    def __getitem__(self, check: Any) -> Any:
        return next(result for result in self.report["results"] if result["check"] == check)


Ci = Callable[..., Answer]


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, in no git checkout yet."""
    made = tmp_path / "project"
    (made / "texts").mkdir(parents=True)
    (made / "texts" / "one.txt").write_text("one\n")
    (made / "contract.yaml").write_text(CONTRACT)
    (made / "tiny.yaml").write_text(PIPELINE)
    monkeypatch.chdir(made)
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE", "GITHUB_STEP_SUMMARY", "GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return made


@pytest.fixture
def checkout(folder: Path) -> Path:
    """The project, committed on `main`."""
    git(folder, "init", "--initial-branch", "main")
    git(folder, "add", ".")
    git(folder, "commit", "--message", "base")
    return folder


@pytest.fixture
def ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ci:
    """The command, in the current folder; without a smoke retrain unless asked for."""

    def ask(*options: str, smoke: bool = False) -> Answer:
        out = tmp_path / "out"
        files = ("--summary", str(out / "ci.md"), "--junit", str(out / "ci.xml"), "--json")
        more = () if smoke else ("--no-smoke",)
        monkeypatch.setattr(sys, "argv", ["headway", "ci", "tiny.yaml", *options, *more, *files])
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            code = run_command()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        message = capsys.readouterr()
        junit = ET.fromstring((out / "ci.xml").read_bytes())
        return Answer(code, json.loads(message.out), (out / "ci.md").read_text(), junit, message.err)

    return ask
