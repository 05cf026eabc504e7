"""Ranks of real processes, forked for each case."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LANGUAGE_MODEL = {"name": "language-model", "model": {"width": 32, "depth": 4, "heads": 4, "hidden": 48}}
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""So that what a tensor gave back is not counted against a limit on memory."""
Answer = dict[str, Any]


def small_stacks() -> None:
    """Every thread's stack counts as memory, and gloo starts some for each process group."""
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))


class Ranks:
    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("gang.py")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
            preexec_fn=small_stacks,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)} | RETURN_MEMORY,
            text=True,
        )

    def run(self, case: Answer) -> list[Answer]:
        """The answers of all ranks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answers: list[Answer] = json.loads(self._process.stdout.readline() or "[null]")
        assert None not in answers, self._log.read_text()[-4000:]
        return answers

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(tmp_path_factory.mktemp("ranks"))
    yield started
    started.end()


@pytest.fixture(scope="session")
def train(ranks: Ranks) -> Callable[..., Answer]:
    """Train a case; what all ranks agree on. Equal cases are trained once."""
    known: dict[str, Answer] = {}

    def run(world_size: int = 1, *, batch: int = 16, micro: int = 4, recipe: Any = None, **options: Any) -> Answer:
        parallel = options.pop("parallel", {"mode": "fast"})
        training = {
            "recipe": recipe or LANGUAGE_MODEL,
            "optimizer": {
                "kind": options.pop("kind", "adamw"),
                "lr": 0.01,
                "epsilon": 1e-3,
                "groups": options.pop("groups", []),
                "implementation": options.pop("implementation", "fused"),
            },
            "schedule": {"warmup_steps": 2},
            "global_batch_sequences": batch,
            "micro_batch_sequences": micro,
            "parallel": parallel,
            "max_steps": 20,
            **{name: options.pop(name) for name in ("precision", "gradient_compression", "compile") if name in options},
        }
        case = {"world_size": world_size, "training": training, **options}
        key = json.dumps(case, sort_keys=True)
        if key not in known:
            answers = ranks.run(case)
            shared = [name for name in answers[0] if not name.startswith("local")]
            for name in shared:
                assert all(answer[name] == answers[0][name] for answer in answers), f"ranks disagree on {name}"
            known[key] = answers[0]
        return known[key]

    return run
