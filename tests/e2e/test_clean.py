"""A real workspace, grown old and cleaned: its version proves as before, and nothing has to be made again."""

from __future__ import annotations

import json
import os
import time

import pytest

DAY_S = 86400.0


def test_after_cleaning_every_version_proves_and_a_retrain_finds_every_stage(
    project, here, retrain_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.root / "cache"))  # this node's own shards are nobody's to clean
    monkeypatch.chdir(project.root)
    moment = time.time() - 40 * DAY_S
    for path in project.workspace.rglob("*"):
        os.utime(path, (moment, moment), follow_symlinks=False)
    checkpoints = project.files("runs/*/checkpoints/*/manifest.json")
    assert len(checkpoints) > 1

    dry = here("clean", "--keep-last", "0", "--json")
    assert dry.returncode == 0, dry.stderr
    told = json.loads(dry.stdout)
    assert project.files("runs/*/checkpoints/*/manifest.json") == checkpoints
    applied = here("clean", "--keep-last", "0", "--apply", "--json")
    assert applied.returncode == 0, applied.stderr
    report = json.loads(applied.stdout)
    assert report["kinds"] == told["kinds"] and not told["applied"] and report["applied"]
    # What simple models came to is made anew where it is wanted again.
    kinds = {"checkpoints", "ledgers", "runs: logs, exports, scores", "documents", "stage entries"}
    assert {kind["kind"] for kind in report["kinds"]} == kinds
    assert project.files("runs/*/checkpoints/*/manifest.json") == checkpoints[-1:]
    assert report["mlflow_removed"] == report["mlflow_killed"] == []

    (weights, *_) = project.files("runs/*/checkpoints/*/tensors*")
    why = here("clean", "--keep-last", "0", "--why", str(weights.relative_to(project.workspace)))
    assert "refs/models/tiny/" in why.stdout, why.stdout + why.stderr

    proved = here("verify", "models:/tiny/1")
    assert proved.returncode == 0, proved.stdout + proved.stderr
    second, _ = retrain_here(project)
    assert second.stages_run == []
