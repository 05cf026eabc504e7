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

from headway.data_contracts.store.errors import (
    EXIT_DEFECT,
    ConfigError,
    ContractViolation,
    CostBoundReached,
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
from headway.training.launch.base.process_tree import die_with_parent, end_in_order

ENDS_WITHIN_S = 120.0
"""How long a retrain may take to keep a checkpoint and end its ranks."""
PREFIX = "headway: "
BY_EXIT_CODE: dict[int, type[HeadwayError]] = {
    kind.exit_code: kind
    for kind in (
        *(ConfigError, DataError, ContractViolation, IntegrityError, TrainingFailed, PromotionRefused),
        *(EnvironmentProblem, RegistryError, RunStopped, CostBoundReached, OutsideWindow, HeadwayError),
    )
}

JsonDocument = dict[str, Any]


def headway(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    on_event: Callable[[JsonDocument], object] | None = None,
) -> JsonDocument:
    """Run a command that speaks JSON lines; returns the last one.

    Whatever ends this process ends the command: a signal lets it keep a checkpoint first, a kill does not.

    Args:
        environment: instead of this process's own.
        on_event: every line as it comes.

    Raises:
        HeadwayError: the command's own error, by its exit code, in its words.
    """
    command = [sys.executable, "-P", "-m", "headway", *arguments]
    answer: JsonDocument = {}
    with (
        tempfile.TemporaryFile("w+", errors="replace") as printed,
        subprocess.Popen(
            command,
            env=dict(os.environ if environment is None else environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            process_group=0,  # a terminal's Ctrl-C comes to us alone, and we pass it on once
            preexec_fn=die_with_parent,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if (parsed := _parsed(line)) is not None:
                    answer = parsed
                    if on_event is not None:
                        on_event(parsed)
            code = process.wait()
        except BaseException:
            # As Ctrl-C would: ranks keep a checkpoint, and servers of the command end with it.
            end_in_order(process, ENDS_WITHIN_S, signal.SIGINT)
            raise
        if code:
            printed.seek(0)
            raise _error(code, printed.read(), answer)
    return answer


def _parsed(line: str) -> JsonDocument | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _error(code: int, printed: str, answer: JsonDocument) -> HeadwayError:
    """What the command said last, without its name."""
    kind = BY_EXIT_CODE.get(code, EnvironmentProblem)
    # Libraries may have written warnings before; the last message with the command's name is its error.
    _, found, message = f"\n{printed}".rpartition(f"\n{PREFIX}")
    if found:
        return kind(message.strip())
    broken = [link for link in answer.get("links", []) if link["status"] == "broken"]
    if broken:
        return kind(f"broken at {broken[0]['what']}: {broken[0]['detail']}")
    last = printed.strip().splitlines()[-1:] or ["no word"]
    what = "a defect of Headway's own" if code == EXIT_DEFECT else f"the command ended with {code}"
    return kind(f"{what}; its last words: {last[0]}")
