"""Work that may crash, grow or never end, done by another process that is asked and answers in lines of JSON.

A process is started when the first is asked for, taken again by whoever asks soon after, and never after a question
that it had trouble with. It ends with the thread that started it, and by itself when nobody asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from headway.data_contracts.store.installation import HOME

IDLE_S = 5.0
TROUBLE = ("errno", "out_of_memory", "raised")
"""What an answer holds after which a process is not asked again."""
PR_SET_PDEATHSIG = 1

_lock = threading.Lock()
_idle: list[_Process] = []


class ProcessTimeout(Exception):
    """The process said nothing for too long."""


class ProcessEnded(Exception):
    """The process ended before it answered: `code`, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def ask(module: str, question: dict[str, Any], *, silence_s: float) -> dict[str, Any]:
    """The answer of a process that runs `python -m` a module.

    Raises:
        ProcessTimeout, ProcessEnded: it gave none.
    """
    message: dict[str, Any] | None = None
    # An idle process may end just as it is asked; the question then goes to a new one.
    while message is None:
        process = _take(module)
        try:
            message = process.ask(question, silence_s)
        finally:
            # Under the lock of `_reap`: a process that ends between the check and `append` would else stay in the list.
            with _lock:
                if message is None or any(name in message for name in TROUBLE) or not process.is_fit:
                    process.close()
                else:
                    _idle.append(process)
    return message


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], *, on_progress: list[Callable[[], object]]) -> None:
    """Be such a process: answer one line after the other until nobody has asked for a while.

    Args:
        on_progress: gets what tells who asked that this process is at work, and not stuck.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Had the parent ended before the call above, its signal would never come.
    if os.getppid() != int(sys.argv[1]):
        return
    # A core file would leave rows of the data on the disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Libraries may print to standard output; from here on, only answers reach the asker's pipe.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    on_progress.append(lambda: send({"alive": True}))
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        send(answer(json.loads(line)))


def _reap(process: _Process) -> None:
    """Leave no zombie of a process that ends while nobody asks it."""
    # WNOWAIT leaves the exit status for `close`, which waits for the same process once more.
    with contextlib.suppress(ChildProcessError):  # whoever closed it has reaped it
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with _lock:
        if process in _idle:
            _idle.remove(process)
            process.close()


def _take(module: str) -> _Process:
    with _lock:
        for process in [process for process in _idle if process.module == module]:
            _idle.remove(process)
            if process.is_fit:
                return process
            process.close()
    process = _Process(module)
    threading.Thread(target=_reap, args=(process,), daemon=True).start()
    return process


class _Process:
    def __init__(self, module: str) -> None:
        path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH", ""))))
        self.module = module
        self._owner = os.getpid()
        self._is_asked = False
        self._process = subprocess.Popen(
            # -P keeps the current folder out of the search for modules: a file there could pose as a library.
            (sys.executable, "-P", "-m", module, str(self._owner)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What a parser prints may quote the data.
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_fit(self) -> bool:
        # A forked child holds the same pipes, and answers to it and to its parent would mix.
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, question: dict[str, Any], silence_s: float) -> dict[str, Any] | None:
        """The answer; None where the process had ended for want of questions before this one came."""
        was_idle, self._is_asked = self._is_asked, True
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            if was_idle:
                return None
        if message := self._answer(self._process.stdout, silence_s):
            found: dict[str, Any] = json.loads(message)
            return found
        code = self._process.wait()
        # Both are ends without a question: by itself when idle, or by SIGKILL with the thread that started it.
        if was_idle and code in (0, -signal.SIGKILL):
            return None
        raise ProcessEnded(code)

    def _answer(self, stream: IO[bytes], silence_s: float) -> bytes:
        """The last line of an answer; empty when the process ends."""
        read: list[bytes] = []
        deadline_s = time.monotonic() + silence_s
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise ProcessTimeout
                if not (some := os.read(stream.fileno(), 1 << 16)):
                    return b""
                read.append(some)
                deadline_s = time.monotonic() + silence_s
                if b"\n" in some:
                    *lines, rest = b"".join(read).split(b"\n")
                    read = [rest]
                    for line in lines:
                        if line != b'{"alive": true}':
                            return line

    def close(self) -> None:
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
