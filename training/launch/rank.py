"""A rank's side of ownership: it dies with its parent, hears SIGTERM even while blocked, and says how it ended.

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
from pathlib import Path
from typing import Any

from data_contracts.errors import HeadwayError, RunStopped
from training.launch import protocol
from training.launch.failure import describe
from training.launch.mandate import mandate_of
from training.launch.process_tree import die_with_parent
from training.launch.protocol import ENDED, AttemptFiles, overwrite_json, write_json
from training.launch.stop_bound import StopBound
from training.ledger import Ledger

WATCH_S = 0.5
MANDATE_WATCH_S = 2.0
DEFAULT_STOP_GRACE_S = 20.0
NOTHING_TO_KEEP = "stopped while there was nothing new to keep."
EXIT_ORPHANED = 137
EXIT_GRACE_OVER = 143


class Rank:
    """Who this process is in the gang, and where it writes down how it fares."""

    def __init__(self, attempt_dir: Path) -> None:
        environment = os.environ
        self.rank = int(environment.get("RANK", "0"))
        self.world_size = int(environment.get("WORLD_SIZE", "1"))
        self.node = int(environment.get(protocol.NODE, environment.get("GROUP_RANK", "0")))
        self.attempt = int(environment.get(protocol.ATTEMPT, "0"))
        self.attempt_dir = attempt_dir
        self.mandate = mandate_of(environment)
        self.stop_bound = StopBound.from_environment(environment)
        self.files = AttemptFiles(attempt_dir)
        self.ledger = Ledger(self.files.rank_spool(self.rank), rank=self.rank, attempt=self.attempt)
        self.parent_pid = os.getppid()
        self.has_ended = False
        self._facts: dict[str, Any] = {}
        # Stays open for as long as the process may be asked for its stacks.
        self.stacks = self.files.stacks(self.rank).open("w")
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
        if self._is_expendable and not self.has_ended:
            self._end("stopped", RunStopped(NOTHING_TO_KEEP))
            os._exit(RunStopped.exit_code)

    def leave_if_superseded(self) -> None:
        """Called by a watch; does not return when a later attempt has begun."""
        if self.mandate.is_withdrawn and not self.has_ended:
            refusal = self.mandate.refusal()
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
        except OSError:
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

    def _end(self, state: str, error: BaseException) -> None:
        fields = describe(error, str(self.attempt_dir))
        self.mark(state, **fields)
        self.ledger.event(f"rank.{state}", cause=fields["cause"], error=fields["error"])

    def hear_sigterm(self, _number: int, _frame: object) -> None:
        """Signal handler."""
        self._stop_requested = True


def arm(default_attempt_dir: Path) -> Rank:
    """Arm this process; call it first, in the main thread, before importing torch.

    Args:
        default_attempt_dir: where to write when no supervisor said so.
    """
    _die_with_agent()
    rank = Rank(_attempt_dir(default_attempt_dir))
    faulthandler.register(signal.SIGUSR2, file=rank.stacks, all_threads=True)
    signal.signal(signal.SIGTERM, rank.hear_sigterm)
    _watch(rank)
    rank.mark("running")
    rank.ledger.event("rank.armed")
    return rank


def _die_with_agent() -> None:
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


def _watch(rank: Rank) -> None:
    """Start the thread that still acts while the main thread is blocked in a collective."""
    receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    grace_s = float(os.environ.get(protocol.STOP_GRACE_S, DEFAULT_STOP_GRACE_S))
    threading.Thread(target=_stand_watch, args=(rank, receiver, grace_s), name="rank-watch", daemon=True).start()
    if rank.mandate.folder is not None:
        threading.Thread(target=_watch_mandate, args=(rank,), name="mandate-watch", daemon=True).start()


def _watch_mandate(rank: Rank) -> None:
    """In a thread of its own: a file system beyond a cut link may never answer."""
    while True:
        time.sleep(MANDATE_WATCH_S)
        rank.leave_if_superseded()


def _stand_watch(rank: Rank, receiver: int, grace_s: float) -> None:
    deadline: float | None = None
    has_agent = _has_agent()
    while True:
        if select.select([receiver], [], [], WATCH_S)[0] and signal.SIGTERM in os.read(receiver, 64):
            deadline = deadline or time.monotonic() + grace_s
            rank.leave_if_expendable()
        if has_agent and os.getppid() != rank.parent_pid:
            os._exit(EXIT_ORPHANED)
        if deadline is not None and time.monotonic() > deadline:
            if not rank.has_ended:
                rank.mark("failed", cause="infrastructure", what=f"did not end within {grace_s:g} s of SIGTERM.")
            os._exit(EXIT_GRACE_OVER)


def _log_file() -> str:
    with contextlib.suppress(OSError):
        path = Path("/proc/self/fd/2").readlink()
        if path.is_file():
            return str(path)
    return ""
