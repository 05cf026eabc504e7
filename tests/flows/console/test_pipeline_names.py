"""What a shell completes is a word to every shell, whatever files lie in the folder that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.flows.console.pipeline_names import completed

COMMANDS = (
    "$(id)",
    "\\$(id)",
    "`id`",
    "a;id",
    "a b",
    "'id'",
    '"',
    "a|id",
    "a&id",
    "a>b",
    "-w",
    "*",
    "~",
    "\x1b[31m",
    "a\nb",
)


def test_a_name_that_a_shell_would_evaluate_is_not_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deployments").mkdir()
    for name in (*COMMANDS, "churn", "größe-2.1"):
        (tmp_path / f"{name}.pipeline.yaml").touch()
        (tmp_path / "deployments" / f"of{name}.yaml").touch()
    assert completed("") == ["churn", "größe-2.1", "of-w", "ofchurn", "ofgröße-2.1"]
    assert completed("ch") == ["churn"]
