"""A process that runs a user's code for one answer, and what it may do meanwhile: hang, print, fork, crash.

It has a deadline, of what it prints the end alone is kept, and nothing that it started outlives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple, Self, cast

from headway.data_contracts.store.plain_text import one_line
from headway.training.launch.base.process_tree import die_with_parent, has_ended, sweep

TOKEN = "HEADWAY_GUEST_TOKEN"
"""Environment: carried by all that the process starts, also where that leaves its group."""
MAX_ANSWER_BYTES = 1 << 20
MAX_STDERR_BYTES = 4096
MAX_LINE_CHARACTERS = 300
CLOSES_WITHIN_S = 1.0
"""What still holds a pipe then has thrown its environment away, and is not waited for."""


class GuestOutcome(NamedTuple):
    code: int | None
    """Negative for a signal; None: it was out of time."""
    answer: str
    """The last line that it answered."""
    last_words: str
    """The last line that it printed besides, printable and of bounded length."""

    @property
    def how(self) -> str:
        """With what it ended, where it ended without an answer."""
        if self.code is not None and self.code < 0:
            return f"by signal {-self.code}"
        return f"with exit code {self.code}{'' if self.code else ' and without an answer'}"


class GuestProcess:
    """
    Args:
        module: calls `answer` once.
        question: its standard input.
    """

    def __init__(self, module: str, question: str, environment: Mapping[str, str]) -> None:
        self._token = uuid.uuid4().hex
        # A file, so that a process which never reads it holds up nobody.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as given:
            given.write(question)
            given.seek(0)
            self._process = subprocess.Popen(
                (sys.executable, "-P", "-m", module),
                env={**environment, TOKEN: self._token},
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,  # with all that the user's code starts
                preexec_fn=die_with_parent,
            )
        self._answer = _Tail(cast(IO[bytes], self._process.stdout), MAX_ANSWER_BYTES)
        self._printed = _Tail(cast(IO[bytes], self._process.stderr), MAX_STDERR_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def outcome(self, until_s: float) -> GuestOutcome:
        """What came of it; it has ended then, with all that it started.

        Args:
            until_s: by `time.monotonic()`.
        """
        try:
            is_done = has_ended(self._process.pid, max(0.0, until_s - time.monotonic()))
        finally:
            self.close()
        code = self._process.returncode if is_done else None
        return GuestOutcome(code, self._answer.last_line(), one_line(self._printed.last_line(), MAX_LINE_CHARACTERS))

    def close(self) -> None:
        if self._process.returncode is not None:
            return
        # Before it is waited for: until then nobody else's group can have its number.
        kill_group(self._process)
        self._process.wait()
        sweep(TOKEN, self._token)
        for tail in (self._answer, self._printed):
            tail.close()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """The process, and its group unless it has left that: a user's code may do so."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


class _Tail:
    """The end of what comes through a pipe, which is read for as long as somebody writes."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        self._stream, self._max_bytes, self._bytes = stream, max_bytes, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while some := os.read(self._stream.fileno(), 1 << 16):
                self._bytes = (self._bytes + some)[-self._max_bytes :]

    def last_line(self) -> str:
        lines = self._bytes.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        self._thread.join(CLOSES_WITHIN_S)
        if not self._thread.is_alive():  # else its descriptor stays, for another file may get the number
            self._stream.close()


def answer(make: Callable[[str], str]) -> None:
    """Be such a process: what a user's code prints, or reads, is neither question nor answer.

    Args:
        make: the answer to a question.
    """
    question = sys.stdin.buffer.read().decode()  # whatever the locale
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    made = make(question)
    answers.write(made.encode(errors="backslashreplace") + b"\n")
    answers.flush()
    os._exit(0)  # whatever threads the user's code has started
