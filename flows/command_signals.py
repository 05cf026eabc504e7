"""How a command hears that it is to end: SIGTERM and a closed terminal become exceptions that clean up on their way."""

from __future__ import annotations

import os
import signal


def hear_of_the_end() -> None:
    """From now on SIGTERM raises `Terminated`, and SIGHUP `HungUp`, unless it is ignored as under `nohup`."""
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)


class Terminated(BaseException):
    """SIGTERM came. Prefect's own handler passes the signal on to ours, whose default would end us without a word."""


class HungUp(BaseException):
    """SIGHUP came: the terminal was closed."""

    spares_detached_runs = True
    """A scheduler has them; who looked on went home."""


def terminate(_number: int, _frame: object) -> None:
    raise Terminated


def hang_up(_number: int, _frame: object) -> None:
    # Kernel and shell each send one; the second must not cut short what the first began.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _let_go_of_dead_streams()
    raise HungUp


def _let_go_of_dead_streams() -> None:
    """What is written for a terminal or a reader that is gone goes nowhere, instead of failing on its way."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
