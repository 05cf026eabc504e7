"""The smallest project that flows read, in a folder of its own that the test stands in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.command_line import run
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tiny.yaml`, its contract and one text; the workspace is to be `workspace` beside them."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("one\n")
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


@pytest.fixture
def headway(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command in this process: its exit code, and what it said."""

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        capsys.readouterr()
        code = run()
        said = capsys.readouterr()
        return code, said.out + said.err

    return call
