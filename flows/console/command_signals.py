"""How a command hears that it is to end: SIGTERM and a closed terminal become exceptions that clean up on their way."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


def install_signal_handlers() -> None:
    """From now on SIGTERM raises `Terminated`, and SIGHUP `HungUp`, unless it is ignored as under `nohup`."""
    signal.signal(signal.SIGTERM, terminate)
    # `nohup` starts a command with the signal ignored, and its user wants it so.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)


@contextlib.contextmanager
def signals_as_before() -> Iterator[None]:
    """What the caller of a Python function has for these signals is there again after the body."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(BaseException):
    """SIGTERM came. Prefect's own handler passes the signal on to ours, whose default would end us without a word."""


class HungUp(BaseException):
    """SIGHUP came: the terminal was closed."""

    keeps_detached_runs = True
    """A scheduler has them; who looked on went home."""


def terminate(_number: int, _frame: object) -> None:
    raise Terminated


def hang_up(_number: int, _frame: object) -> None:
    # Kernel and shell each send one; the second must not cut short what the first began.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _redirect_dead_streams()
    raise HungUp


def _redirect_dead_streams() -> None:
    """What is written for a terminal or a reader that is gone goes nowhere, instead of failing on its way."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
