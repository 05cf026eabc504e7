"""Guards, agents and ranks as forks of a process that has imported all they need: real ones, within milliseconds.

What `subprocess.Popen` would have executed, a fork runs in its place as `python -m` does, with the same pipes, session,
parent and environment; only the imports are saved, two seconds of a core for each. The kernel shows the environment
that the first of them was started with, so that a sweep by token finds none of them: they end by their guards.
"""

from __future__ import annotations

import gc
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.program_ends import end_with, run_module

SPARED = re.compile(r"training\.(programs\.worker|launch\.node\.node_guard)$|toy_agent\.py$")
"""What is not executed."""
ASSIGNMENT = re.compile(r"[A-Z_]+=")


class PythonCommand(NamedTuple):
    """What runs a module, or a file."""

    program: str
    arguments: tuple[str, ...]
    assigned: dict[str, str]
    """What env(1) puts into its environment."""

    @classmethod
    def of(cls, argv: Sequence[str]) -> PythonCommand | None:
        """None: it runs something else."""
        words = list(argv)
        assigned = {}
        if words[0] == "env":
            del words[0]
            while words and ASSIGNMENT.match(words[0]):
                name, _, value = words.pop(0).partition("=")
                assigned[name] = value
        interpreter, *words = words
        while words and words[0] in ("-P", "-u", "-m"):
            del words[0]
        if interpreter != sys.executable or not words or not SPARED.search(words[0]):
            return None
        return cls(words[0], tuple(words[1:]), assigned)


class ForkingPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, once it is put in its place."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        preexec_fn: Callable[[], object] | None = None,
        **others: Any,
    ) -> None:
        if (command := PythonCommand.of(args)) is not None:
            # Where a new process would call it, and whence this one never comes back.
            given = dict(os.environ if env is None else env)
            preexec_fn = partial(end_with, partial(_run, command, given, preexec_fn))
        super().__init__(args, env=env, preexec_fn=preexec_fn, **others)


def fork_from_here() -> None:
    """From now on, in this process and its forks. Only what has no threads can be forked without losing a lock."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1
    subprocess.Popen = ForkingPopen  # type: ignore[misc]


def _run(command: PythonCommand, environment: dict[str, str], prepare: Callable[[], object] | None) -> None:
    if prepare is not None:
        prepare()
    # Nothing of before is finalised any more: what it had open is closed, and others get the numbers.
    gc.freeze()
    gc.enable()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment | command.assigned)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    sys.argv[:] = [command.program, *command.arguments]
    if command.program.endswith(".py"):
        runpy.run_path(command.program, run_name="__main__")
    else:
        run_module(command.program)
