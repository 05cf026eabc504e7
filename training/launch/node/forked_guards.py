"""The owner's side of the fork server: guards that start within milliseconds, with torch imported once for all gangs.

A server is there for whoever asked for one by `forking`, from the first gang on; without it, or once it is lost, each
guard is a program of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from headway.training.launch.base.gang import inherited_environment
from headway.training.launch.base.process_tree import HEADWAY_HOME
from headway.training.launch.base.protocol import NO_TOKEN, TOKEN

SERVER = Path(__file__).with_name("fork_server.py")
ANSWER_WITHIN_S = 60.0
"""Of a server that has torch to import yet."""
KILLED = -int(signal.SIGKILL)


class ForkedGuard:
    """As much of `subprocess.Popen` as a launcher asks for, of a guard that is another process's child."""

    def __init__(self, pid: int, pidfd: int, lifeline: int, end: int) -> None:
        self.pid, self._pidfd, self._end = pid, pidfd, end
        self.stdin = os.fdopen(lifeline, "wb")
        self.returncode: int | None = None

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._end

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self) -> int | None:
        return self._ended(None)

    def kill(self) -> None:
        # Its descriptor's number may be another's once it has ended.
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], within_s)[0]:
            # It writes its exit code last; the pipe of one that was killed ends without a byte.
            last = os.read(self._end, 1)
            self.returncode = last[0] if last else KILLED
            os.close(self._end)
            os.close(self._pidfd)
        return self.returncode


class ForkServerLost(Exception):
    """It forks no more; says how it ended."""


class _Server:
    def __init__(self, log: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As ranks are: equal variables are what makes a fork equal to a fresh start.
        given = {TOKEN: NO_TOKEN, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-P", str(SERVER), str(os.getpid())),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=inherited_environment(os.environ) | given,
                start_new_session=True,
            )
        self._channel = ours
        self._channel.settimeout(ANSWER_WITHIN_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, log: int, token: str, code: str) -> ForkedGuard:
        """Raises `ForkServerLost`."""
        reading, lifeline = os.pipe()
        end, writing = os.pipe()
        try:
            request = json.dumps({"token": token, "headway": HEADWAY_HOME, "code": code}).encode()
            socket.send_fds(self._channel, [request], [reading, log, writing])
            answer, descriptors, _, _ = socket.recv_fds(self._channel, 4096, 1)
            if not answer:
                raise EOFError
            return ForkedGuard(json.loads(answer)["pid"], descriptors[0], lifeline, end)
        except (OSError, EOFError) as error:
            os.close(lifeline)
            os.close(end)
            raise ForkServerLost(self._how_it_ended()) from error
        finally:
            os.close(reading)
            os.close(writing)

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return "no answer"

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


class GuardForks:
    """Starts the server with the first gang; after its loss there is none."""

    def __init__(self) -> None:
        self._server: _Server | None = None
        self.lost = ""

    def fork(self, log: int, token: str, code: str) -> ForkedGuard | None:
        """None: start it as a program.

        Args:
            log: the node's, which says why.
            code: the import path of its ranks.
        """
        if self.lost:
            return None
        try:
            self._server = self._server or _Server(log)
            return self._server.fork(log, token, code)
        except (ForkServerLost, OSError) as error:
            self.lost = f"the fork server ended ({error}); ranks are started afresh."
            os.write(log, f"{self.lost}\n".encode())
            return None

    @property
    def pid(self) -> int | None:
        return None if self._server is None else self._server.pid

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


_forks: ContextVar[GuardForks | None] = ContextVar("guard_forks", default=None)


def guard_forks() -> GuardForks | None:
    return _forks.get()


@contextlib.contextmanager
def forking() -> Iterator[GuardForks]:
    """Gangs of this machine that the body starts are forks of one process, which ends with the body or this process."""
    with contextlib.closing(GuardForks()) as forks:
        token = _forks.set(forks)
        try:
            yield forks
        finally:
            _forks.reset(token)
