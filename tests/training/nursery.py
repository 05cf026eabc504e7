"""Starts ranks within milliseconds: a process that has imported all they need, and forks one for each line it reads.

Each rank is a process of its own that runs its module as `python -m` does, in the folder, the environment and with the
path that it is told; only the imports are saved, two seconds of a core for each. The nursery keeps no thread of its
own, so that nothing is lost in forking, and says how each rank ended.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headway.training.launch.base.process_tree import die_with_parent
from tests.program_ends import end_with, run_module
from tests.started_processes import note
from tests.waiting import DEADLINE_S
from tests.warm_programs import Program

REPOSITORY = Path(__file__).resolve().parents[2]
FOR_SLICES = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
"""What ranks import besides once they share a model: two seconds of a core for each."""


class Nursery:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._codes: dict[int, int] = {}
        ours = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        with log.open("wb") as stream:
            self._process = Program(
                [sys.executable, "-m", "tests.training.nursery"],
                cwd=REPOSITORY,
                env=ours | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        imports: Sequence[str] = (),
    ) -> ForkedRank:
        """Args:
        environment: all of it; of the path, what `python -m` would take from there.
        imports: what the rank needs that most do without; there from now on.
        """
        note("tests.nursery.start", module)
        told = {"module": module, "arguments": list(arguments), "folder": str(folder), "log": str(log)}
        told |= {"imports": list(imports)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**told, "environment": dict(environment)}) + "\n")
        self._process.stdin.flush()
        while (started := self._read()) is None:
            pass
        return ForkedRank(self, started)

    def exit_code(self, pid: int) -> int:
        """Of a rank that has ended, or is about to."""
        while pid not in self._codes:
            self._read()
        return self._codes[pid]

    def _read(self) -> int | None:
        """The rank that began, or None when the news was the end of one."""
        assert self._process.stdout is not None
        word, pid, *code = self._process.stdout.readline().split() or ["broken", "0"]
        assert word != "broken", self._log.read_text()
        if word == "began":
            self._codes.pop(int(pid), None)  # of an earlier rank, whose number the new one was given
            return int(pid)
        self._codes[int(pid)] = int(code[0])
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class ForkedRank:
    """As `subprocess.Popen` is; watched through a file descriptor, so its number cannot become another's."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self._descriptor: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._descriptor = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def has_ended(self, within_s: float = 0.0) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], within_s)[0])

    def poll(self) -> int | None:
        return self.wait() if self.has_ended() else None

    def wait(self, within_s: float = DEADLINE_S) -> int:
        if not self.has_ended(within_s):
            raise subprocess.TimeoutExpired(f"rank {self.pid}", within_s)
        self.close()
        return self._nursery.exit_code(self.pid)

    def fileno(self) -> int:
        """Of a rank that has not been waited for; readable when it has ended."""
        assert self._descriptor is not None
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@functools.cache
def session_nursery() -> Nursery:
    """One for the session; it ends with its standard input."""
    return Nursery(Path(tempfile.mkdtemp(prefix="headway-nursery-", dir=os.environ.get("HEADWAY_LOCAL"))) / "log")


def main() -> None:
    import headway.training.programs.evaluation
    import headway.training.programs.export
    import headway.training.programs.session
    import headway.training.programs.verify_worker
    import headway.training.programs.worker  # noqa: F401

    signal.signal(signal.SIGCHLD, _tell_of_ends)
    for line in sys.stdin:
        told = json.loads(line)
        if told["module"] == "headway.training.programs.export":
            import torch.export._trace  # noqa: F401  # as `torch.export.export` would, in seconds, for every graph
        for name in told["imports"]:
            importlib.import_module(name)
        # So that no rank is said to have ended before it is said to have begun.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            die_with_parent()  # whose own end is that of its standard input: a test process that is killed leaves none
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            end_with(partial(_run_rank, told))
        os.write(1, f"began {pid}\n".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _tell_of_ends(*_signal: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(1, f"ended {ended[0]} {os.waitstatus_to_exitcode(ended[1])}\n".encode())


def _run_rank(told: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(told["folder"])
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(told["environment"])
    here = [] if os.environ.get("PYTHONSAFEPATH") else [told["folder"]]
    sys.path[:] = [*here, *os.environ["PYTHONPATH"].split(os.pathsep), *sys.path[2:]]
    sys.argv[1:] = told["arguments"]
    run_module(told["module"])


if __name__ == "__main__":
    main()
