"""`headway` started by `headway ci`: its events as they come, its exit code as an error, and an orderly end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from data_contracts.errors import (
    EXIT_DEFECT,
    ConfigError,
    ContractViolation,
    DataError,
    EnvironmentProblem,
    HeadwayError,
    IntegrityError,
    OutsideWindow,
    PromotionRefused,
    RegistryError,
    RunStopped,
    TrainingFailed,
)
from training.launch.process_tree import die_with_parent

ENDS_WITHIN_S = 120.0
"""How long a retrain may take to keep a checkpoint and end its ranks."""
PREFIX = "headway: "
BY_EXIT_CODE: dict[int, type[HeadwayError]] = {
    kind.exit_code: kind
    for kind in (
        *(ConfigError, DataError, ContractViolation, IntegrityError, TrainingFailed, PromotionRefused),
        *(EnvironmentProblem, RegistryError, RunStopped, OutsideWindow, HeadwayError),
    )
}

Answer = dict[str, Any]


def headway(
    *arguments: str, environment: Mapping[str, str] | None = None, hear: Callable[[Answer], object] | None = None
) -> Answer:
    """Run a command that speaks JSON lines; returns the last one.

    Whatever ends this process ends the command: a signal lets it keep a checkpoint first, a kill does not.

    Args:
        environment: instead of this process's own.
        hear: every line as it comes.

    Raises:
        HeadwayError: the command's own error, by its exit code, in its words.
    """
    command = [sys.executable, "-P", "-m", "headway", *arguments]
    answer: Answer = {}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as said,
        subprocess.Popen(
            command,
            env=dict(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            process_group=0,  # a terminal's Ctrl-C comes to us alone, and we pass it on once
            preexec_fn=die_with_parent,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if (heard := _parsed(line)) is not None:
                    answer = heard
                    if hear is not None:
                        hear(heard)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        if code:
            said.seek(0)
            raise _error(code, said.read(), answer)
    return answer


def _parsed(line: str) -> Answer | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _error(code: int, said: str, answer: Answer) -> HeadwayError:
    """What the command said last, without its name."""
    kind = BY_EXIT_CODE.get(code, EnvironmentProblem)
    _, found, message = f"\n{said}".rpartition(f"\n{PREFIX}")
    if found:
        return kind(message.strip())
    broken = [link for link in answer.get("links", []) if link["standing"] == "broken"]
    if broken:
        return kind(f"broken at {broken[0]['what']}: {broken[0]['detail']}")
    last = said.strip().splitlines()[-1:] or ["no word"]
    what = "a defect of Headway's own" if code == EXIT_DEFECT else f"the command ended with {code}"
    return kind(f"{what}; its last words: {last[0]}")
