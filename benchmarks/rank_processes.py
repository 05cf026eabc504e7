"""Ranks of a gang as processes of a benchmark, of which the first one says what was measured."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence


def first_answer(commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> bytes:
    """What the first of them wrote once all have ended.

    Args:
        environments: of each rank, beside this process's own.

    Raises:
        RuntimeError: a rank failed.
    """
    ranks = [
        subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}, stdout=subprocess.PIPE)
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        answers = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
    return answers[0]
