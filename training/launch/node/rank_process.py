"""A rank's side of ownership: it dies with its parent, reacts to SIGTERM even while blocked, and records how it ended.

Imported before torch, so standard library only. Works under a guard, under a bare torchrun, and alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import HeadwayError, RunStopped
from headway.data_contracts.store.places import keep_compiled_code_private
from headway.data_contracts.store.regular_files import open_to_write
from headway.training.launch.base import protocol
from headway.training.launch.base.failure import EndState, Failure, traceback_of
from headway.training.launch.base.fence import fence_of
from headway.training.launch.base.process_tree import die_with_parent
from headway.training.launch.base.protocol import ENDED, AttemptFiles, overwrite_json, write_json
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Ledger

WATCH_S = 0.5
FENCE_WATCH_S = 2.0
DEFAULT_STOP_GRACE_S = 20.0
NOTHING_TO_KEEP = "stopped while there was nothing new to keep."
EXIT_ORPHANED = 137
EXIT_GRACE_OVER = 143


class RankProcess:
    """Who this process is in the gang, and where it writes down how it fares."""

    def __init__(self, attempt_dir: Path) -> None:
        environment = os.environ
        self.rank = int(environment.get("RANK", "0"))
        self.world_size = int(environment.get("WORLD_SIZE", "1"))
        self.node = int(environment.get(protocol.NODE, environment.get("GROUP_RANK", "0")))
        self.attempt = int(environment.get(protocol.ATTEMPT, "0"))
        self.attempt_dir = attempt_dir
        self.fence = fence_of(environment)
        self.stop_at = StopRequest.from_environment(environment)
        self.files = AttemptFiles(attempt_dir)
        self.ledger = Ledger(self.files.rank_spool(self.rank), rank=self.rank, attempt=self.attempt)
        self.parent_pid = os.getppid()
        self.has_ended = False
        self._facts: dict[str, Any] = {}
        # Stays open for as long as the process may be asked for its stacks.
        self.stacks = open_to_write(self.files.stacks(self.rank), "wb")
        self._stop_requested = False
        self._is_expendable = False

    @property
    def stop_requested(self) -> bool:
        """Whether SIGTERM has come: keep a checkpoint at the next step and raise `RunStopped`; see `expendable`."""
        return self._stop_requested

    @contextlib.contextmanager
    def expendable(self) -> Iterator[None]:
        """Work that leaves nothing to keep, such as starting or evaluating: SIGTERM ends it at once, in good order.

        The watch does that, so it works for a main thread that waits for its peers too.

        Raises:
            RunStopped: SIGTERM has come already.
        """
        self._is_expendable = True
        if self._stop_requested:
            raise RunStopped(NOTHING_TO_KEEP)
        try:
            yield
        finally:
            self._is_expendable = False

    @contextlib.contextmanager
    def worth_keeping(self) -> Iterator[None]:
        """A part of expendable work that is not: it watches `stop_requested` itself."""
        was, self._is_expendable = self._is_expendable, False
        try:
            yield
        finally:
            self._is_expendable = was

    def leave_if_expendable(self) -> None:
        """Called by the watch when SIGTERM has come; does not return when there is nothing to keep."""
        # An end that was recorded already, such as `done`, must not be overwritten by the watch thread.
        if self._is_expendable and not self.has_ended:
            self._end("stopped", RunStopped(NOTHING_TO_KEEP))
            # Not `sys.exit`: that would end the watch thread alone, while the main thread waits in a collective.
            os._exit(RunStopped.exit_code)

    def leave_if_superseded(self) -> None:
        """Called by a watch; does not return when a later attempt has begun."""
        if self.fence.is_revoked and not self.has_ended:
            refusal = self.fence.refusal()
            self._end("failed", refusal)
            os._exit(refusal.exit_code)

    def mark(self, state: str, **fields: Any) -> None:
        """Write the marker: `state` is `running`, `done`, `stopped` or `failed`; other fields stay till overwritten.

        A disk without space ends no rank, and how a rank ended is told even there.
        """
        self.has_ended = state in ENDED
        self._facts.update(fields)
        identity = {"rank": self.rank, "node": self.node, "attempt": self.attempt, "log": _log_file()}
        process = {"pid": os.getpid(), "parent_pid": self.parent_pid, "unix_s": time.time()}
        marker, value = self.files.marker(self.rank), {**identity, **process, **self._facts, "state": state}
        try:
            write_json(marker, value)
        # A full disk takes no new file, but lets an existing one be rewritten in place.
        except OSError:
            # The traceback is dropped, so that the record fits into the space that the `running` marker took.
            with contextlib.suppress(OSError):
                overwrite_json(marker, {**value, "traceback": ""})

    @contextlib.contextmanager
    def outcome(self) -> Iterator[None]:
        """Whatever ends the body is written into the marker before it leaves.

        Raises:
            SystemExit: 75 after `RunStopped`, an error's own code after any other `HeadwayError`.
        """
        try:
            yield
        # Before `HeadwayError`, its base class: a stop is no failure, and is recorded as one of its own.
        except RunStopped as stop:
            self._end("stopped", stop)
            raise SystemExit(stop.exit_code) from None
        except HeadwayError as error:
            self._end("failed", error)
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            raise SystemExit(error.exit_code) from error
        except BaseException as error:
            self._end("failed", error)
            raise
        self.mark("done")
        self.ledger.event("rank.done")

    def _end(self, state: EndState, error: BaseException) -> None:
        failure = Failure.of(error, str(self.attempt_dir))
        self.mark(state, failure=asdict(failure), traceback=traceback_of(error))
        self.ledger.event(f"rank.{state}", cause=failure.cause, error=failure.error)

    def on_sigterm(self, _number: int, _frame: object) -> None:
        """Signal handler."""
        self._stop_requested = True


def arm(default_attempt_dir: Path) -> RankProcess:
    """Arm this process; call it first, in the main thread, before importing torch.

    Args:
        default_attempt_dir: where to write when no supervisor said so.
    """
    _die_with_agent()
    # Before torch is imported: it reads the folder for compiled code from the environment.
    keep_compiled_code_private()
    rank = RankProcess(_attempt_dir(default_attempt_dir))
    # `faulthandler` writes from C without the GIL, so it answers even where Python code cannot run.
    faulthandler.register(signal.SIGUSR2, file=rank.stacks, all_threads=True)
    # A crash in foreign code, such as an operation of a recipe's own, leaves no other word.
    faulthandler.enable(file=rank.stacks, all_threads=True)
    signal.signal(signal.SIGTERM, rank.on_sigterm)
    _watch(rank)
    # From the first marker on the supervisor counts this rank as up; all that can fail quietly is done before.
    rank.mark("running")
    rank.ledger.event("rank.armed")
    return rank


def _die_with_agent() -> None:
    # Run by hand, without torchrun, there is no agent whose end should take the process along.
    if not _has_agent():
        return
    die_with_parent()
    guard = os.environ.get(protocol.GUARD_PID)
    # The guard adopts orphans: a rank whose parent is the guard, or init, has lost its agent already.
    if guard is not None and os.getppid() in (1, int(guard)):
        os._exit(EXIT_ORPHANED)


def _has_agent() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _attempt_dir(default: Path) -> Path:
    return Path(os.environ.get(protocol.ATTEMPT_DIR, default))


def _watch(rank: RankProcess) -> None:
    """Start the thread that still acts while the main thread is blocked in a collective."""
    # A Python signal handler runs in the main thread alone, which may be blocked; the wake-up pipe reaches a thread.
    receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    grace_s = float(os.environ.get(protocol.STOP_GRACE_S, DEFAULT_STOP_GRACE_S))
    threading.Thread(target=_stand_watch, args=(rank, receiver, grace_s), name="rank-watch", daemon=True).start()
    if rank.fence.folder is not None:
        threading.Thread(target=_watch_fence, args=(rank,), name="fence-watch", daemon=True).start()


def _watch_fence(rank: RankProcess) -> None:
    """In a thread of its own: a file system beyond a cut link may never answer."""
    while True:
        time.sleep(FENCE_WATCH_S)
        rank.leave_if_superseded()


def _stand_watch(rank: RankProcess, receiver: int, grace_s: float) -> None:
    deadline: float | None = None
    has_agent = _has_agent()
    while True:
        # Without a signal the timeout still comes round, for the parent's pid and the deadline have no descriptor.
        if select.select([receiver], [], [], WATCH_S)[0] and signal.SIGTERM in os.read(receiver, 64):
            deadline = deadline or time.monotonic() + grace_s
            rank.leave_if_expendable()
        # A second net beside the death signal, which the kernel drops where the rank changes its credentials.
        if has_agent and os.getppid() != rank.parent_pid:
            os._exit(EXIT_ORPHANED)
        if deadline is not None and time.monotonic() > deadline:
            if not rank.has_ended:
                # Its peers may have been waiting for it, so the cause is infrastructure, and another attempt may
                # succeed.
                late = Failure(cause="infrastructure", what=f"did not end within {grace_s:g} s of SIGTERM.")
                rank.mark("failed", failure=asdict(late))
            os._exit(EXIT_GRACE_OVER)


def _log_file() -> str:
    with contextlib.suppress(OSError):
        path = Path("/proc/self/fd/2").readlink()
        if path.is_file():
            return str(path)
    return ""
