"""Benchmarks that nobody runs for a month still run: each in its smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sharding import write_table
from benchmarks.sharding_work import CONTENDERS

SMALLEST = {
    "checkpoint": ("--megabytes", "8", "--rounds", "1", "--no-peers"),
    "communication_loss": ("--steps", "12", "--seeds", "1", "--only", "16 rows, H 10"),
    "contracts": ("--rows", "2000", "--rounds", "1"),
    "exact": ("--rounds", "1", "--model", "1 M", "--only", "2 ranks"),
    "gradient_noise": ("--rounds", "1"),
    "job": ("--rounds", "1", "--steps", "20"),
    "loader": ("--scales", "1", "--rounds", "1"),
    "optimizer": ("--blocks", "1", "--width", "32", "--rounds", "1"),
    "search": ("--seeds", "1", "--steps", "27"),
    "search_beside": ("--rounds", "1", "--steps", "20"),
    "search_bookkeeping": ("--rounds", "2", "--draws", "2"),
    "second_run": ("--pipeline", "breast-cancer", "--rounds", "1"),
    "sharding": ("--rows", "2000", "--scales", "1", "--rounds", "1"),
    "step": ("--rounds", "1", "--save-rounds", "1", "--save-steps", "2"),
    "tables": ("--only", "wine"),
    "validation": ("--rounds", "1"),
}


def test_what_is_measured_of_sharding_writes_shards(tmp_path: Path) -> None:
    source, target = write_table(tmp_path / "source", 2_000), tmp_path / "workspace"
    target.mkdir()
    CONTENDERS["headway"](source, target, "none")()
    assert list(target.rglob("*.parquet"))


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALLEST)
def test_every_benchmark_runs_to_its_figures(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *SMALLEST[name], "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    assert json.loads(done.stdout)["figures"]
