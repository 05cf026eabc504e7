"""A thread beside a guard's own: where files hold up all that the guard does, nobody outlives the owner by it.

Standard library only.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import termios
import threading
import time

from headway.training.launch.base.process_tree import descendants, kill_descendants

STUCK_S = 2.0
"""How long a round may take before something holds it up: a file system that does not answer."""
EXIT_STUCK = 3


class GuardWatchdog:
    """Ends this process, and all below it, where it is stuck and its owner gone.

    Args:
        lifeline: the descriptor that ends when the owner lets go.
        lease_s: how long the owner may be silent; None: for ever.
        grace_s: what is left to the guard to come unstuck once the owner is gone.
    """

    def __init__(self, lifeline: int, lease_s: float | None, grace_s: float) -> None:
        self._lifeline, self._lease_s, self._grace_s = lifeline, lease_s, grace_s
        self._round_started_s = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="stand-by", daemon=True).start()

    def begin_round(self) -> None:
        """The guard is not stuck, and reads from its owner itself."""
        self._round_started_s = time.monotonic()

    def _watch(self) -> None:
        lifeline = select.poll()
        lifeline.register(self._lifeline, select.POLLRDHUP | select.POLLHUP)
        num_unread, heard_s = 0, time.monotonic()
        gone_since_s: float | None = None
        while True:
            # Several looks within one limit: a round that hangs is noticed soon after `STUCK_S`, for almost no CPU
            # time.
            time.sleep(STUCK_S / 4)
            now_s, round_s = time.monotonic(), self._round_started_s
            # Nobody reads the owner's beats while the guard is stuck, but unread bytes that grow show that it lives.
            before, num_unread = num_unread, _num_unread(self._lifeline)
            # A round that began has read the lifeline itself, so its beginning counts as the owner's latest sign.
            heard_s = max(round_s, now_s if num_unread != before else heard_s)
            is_silent = self._lease_s is not None and now_s - heard_s > self._lease_s
            is_gone = now_s - round_s > STUCK_S and (bool(lifeline.poll(0)) or is_silent)
            # The grace starts over whenever the guard comes unstuck or the owner is seen again.
            gone_since_s = (gone_since_s or now_s) if is_gone else None
            if gone_since_s is not None and now_s - gone_since_s > self._grace_s:
                _fall(now_s + STUCK_S)


def _fall(until_s: float) -> None:
    """With all that is below; what ranks started for themselves would not fall with the guard alone."""
    try:
        # Repeated, for a child may start another between the look and the kill.
        while descendants(os.getpid()) and time.monotonic() < until_s:
            kill_descendants()
            # Zombies keep their place in /proc until they are reaped, and `descendants` would look through them for
            # ever.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    finally:
        # Not `sys.exit`: the main thread is blocked in a system call, and no exception reaches it there.
        os._exit(EXIT_STUCK)


def _num_unread(descriptor: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, number)
    return number[0]
