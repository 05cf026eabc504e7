"""Rounds of `gang.py`, started and read back."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.warm_programs import run_program

REPOSITORY = Path(__file__).resolve().parents[3]

Found = dict[str, Any]


def run(folder: Path, rounds: list[Found]) -> list[list[Found]]:
    """What each rank of each round found, by case."""
    path = folder / "rounds.json"
    path.write_text(json.dumps(rounds))
    program = [sys.executable, Path(__file__).with_name("gang.py"), path]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = run_program(program, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return [
        [json.loads((folder / f"round-{number}-rank-{rank}.json").read_text()) for rank in range(job["world_size"])]
        for number, job in enumerate(rounds)
    ]


def changing_worlds(draw: random.Random, sizes: Sequence[int]) -> list[int]:
    """Four numbers of ranks, each another than the one before."""
    drawn = draw.sample(sizes, len(sizes))
    return [*drawn, *drawn][:4]


def resumes(
    seed: int, num_steps: int, cases: Sequence[str], sizes: Sequence[int], chain: str = "resumed"
) -> list[Found]:
    """Rounds from step 0 to the last, cut at random and each on another number of ranks."""
    draw = random.Random(seed)
    cuts = [0, *sorted(draw.sample(range(1, num_steps), 3)), num_steps]
    worlds = changing_worlds(draw, sizes)
    return [
        {"world_size": world, "chain": chain, "cases": dict.fromkeys(cases, (first, last))}
        for world, first, last in zip(worlds, cuts, cuts[1:], strict=False)
    ]
