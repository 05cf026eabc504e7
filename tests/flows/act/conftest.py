"""`headway contract` in this process, in a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.flows.cli.command_line import run as run_command


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Headway = Callable[..., Answer]


@pytest.fixture
def headway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headway:
    """The command, run in a folder of its own; a terminal wide enough not to fold words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)

    def ask(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        code = run_command()
        return Answer(code, *capsys.readouterr())

    return ask
