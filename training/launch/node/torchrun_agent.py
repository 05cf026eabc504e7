"""The torchrun agent of one node, whose ranks are forks of it: torch is imported once a node, not by every rank again.

    python .../torchrun_agent.py TORCHRUN'S ARGUMENTS... -m MODULE ARGUMENTS...

Environment, logs and the watch over ranks are torchrun's own; how it starts a process and who takes part are not. A
rank is what `python -m MODULE` would be, with its modules there already, which saves a second of every attempt and of
every rank. Started by its path: a rank imports frozen code, which may be older than this file.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import runpy
import select
import signal
import stat
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

gc.disable()  # a third of the time it takes to import torch is spent looking for garbage that is not there

import torch.distributed.run  # noqa: E402
from torch._C._distributed_c10d import HashStore  # noqa: E402
from torch.distributed.elastic.multiprocessing import api as starting  # noqa: E402
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (  # noqa: E402
    SubprocessHandler,
)
from torch.distributed.elastic.rendezvous import (  # noqa: E402
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # noqa: E402

gc.freeze()
gc.enable()

AGENT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
CUDA_IS_AVAILABLE = torch.cuda.is_available
BACKEND = "fixed"
PR_SET_PDEATHSIG = 1


class ForkedRank:
    """As much of `subprocess.Popen` as torchrun asks for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # A pidfd instead of the number: it can be waited for with a timeout, and never means another process.
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired` after so many seconds."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired(f"rank of process {self.pid}", timeout or 0.0)
        return code

    def _ended(self, within_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], within_s)[0]:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._descriptor)
        return self.returncode


class ForkingHandler(SubprocessHandler):
    """How torchrun starts one rank; see `SubprocessHandler._popen` of torch 2.13."""

    def _popen(self, args: Sequence[str], env: dict[str, str]) -> ForkedRank:  # type: ignore[override]
        """Args:
        args: python, `-u`, `-m`, the module, its arguments.
        """
        _python, _unbuffered, _as_module, module, *arguments = args
        # Buffers are copied by a fork; text left in them would be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        # Till the rank hears by itself: what the agent does at a signal, its fork must not do once more.
        signal.pthread_sigmask(signal.SIG_BLOCK, AGENT_SIGNALS)
        agent, pid = os.getpid(), os.fork()
        if pid == 0:
            _end_with(agent)
            os.setsid()
            os.close(reading)
            os.close(writing)
            _become_rank(module, arguments, env, self._stdout, self._stderr)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AGENT_SIGNALS)
        os.close(writing)
        # Until it leads a process group: torchrun ends ranks by their groups, and takes none for an error.
        os.read(reading, 1)
        os.close(reading)
        return ForkedRank(pid)


def _end_with(agent: int) -> None:
    """Have the kernel end this rank with its agent, which may have been told to end before it knew of the rank.

    prctl(2). torchrun ends the ranks that it has written down, and it writes them down once all are started.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)


def _become_rank(
    module: str, arguments: Sequence[str], environment: dict[str, str], out: IO[str] | None, err: IO[str] | None
) -> NoReturn:
    code = 1
    try:
        # The stub below was for the agent alone; a rank has to see its GPUs.
        torch.cuda.is_available = CUDA_IS_AVAILABLE
        for number in AGENT_SIGNALS:
            # As in a fresh Python, which turns SIGINT into KeyboardInterrupt and leaves the others to the kernel.
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AGENT_SIGNALS)
        for stream, descriptor in ((out, 1), (err, 2)):
            if stream is not None:
                os.dup2(stream.fileno(), descriptor)
        # After the streams are in place, and before the rank opens sockets of its own.
        _close_inherited_sockets()
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(f"rank {environment['RANK']}")
        # Cleared first: variables of the agent that torchrun did not pass on would otherwise stay visible.
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Never returns into the agent's stack: its handlers and its loop over ranks would run in the fork too.
        os._exit(code)


def _close_inherited_sockets() -> None:
    """The agent's, which its peers would take for open when it has ended.

    Each number stays taken: torch's objects that own them live on in the fork, and may close them at any time.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for entry in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(entry.name)
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


class FixedMembership(RendezvousHandler):
    """Who takes part is known before anybody is started: agents ask nobody, listen nowhere and unpickle nothing.

    torchrun's own way lets whoever reaches its store join, and unpickles what is there.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters = parameters

    def next_rendezvous(self) -> RendezvousInfo:
        parameters = self._parameters
        address, port = parse_rendezvous_endpoint(parameters.endpoint, default_port=-1)
        node = parameters.get_as_int("node")
        assert node is not None, "every agent is given its node's number"
        # Where ranks meet is their own affair; the variables are for who looks for them.
        return RendezvousInfo(NoStore(), node, parameters.max_nodes, RendezvousStoreInfo(address, port))

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._parameters.run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


class NoStore(HashStore):
    """Through it agents would wait for each other at the end: none needs another, whose end its guard tells."""

    # torchrun ends with a barrier over its store, which waits minutes for an agent that was killed.
    def wait(self, *_: object) -> None:
        pass


def _not_asked() -> bool:
    return False


def main(arguments: Sequence[str]) -> int:
    """Returns: torchrun's exit code."""
    # torchrun asks in order to bind ranks to memory. To answer starts CUDA here, and no fork could use a device then.
    torch.cuda.is_available = _not_asked
    setattr(starting, "get_subprocess_handler", ForkingHandler)  # noqa: B010  # a name that torch does not export
    rendezvous_handler_registry.register(BACKEND, FixedMembership)
    # Otherwise torchrun exchanges the numbers of ranks through a store. All nodes have equally many.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    try:
        torch.distributed.run.main(list(arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except starting.SignalException as end:
        # As its guard asked: a traceback would read as a failure, and end what `headway logs` shows.
        name = signal.Signals(end.sigval).name
        print(f"headway: {name} came, so the agent has ended its ranks and ends.", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # Nothing is left to do, and to unload torch takes half a second for which the whole gang would wait.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
