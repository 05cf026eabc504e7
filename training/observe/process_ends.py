"""A rank process's two ends: its first second belongs into the account of time, and its last is cut short."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headway.training.observe.ledger import Ledger


def process_start_unix_s() -> float:
    """Wall-clock time at which the kernel started this process, to a clock tick (10 ms); now where it does not say."""
    try:
        # The process's name, in brackets, may hold blanks; fields are counted after it.
        # The twentieth is the start time.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


@contextlib.contextmanager
def record_imports(ledger: Ledger) -> Iterator[None]:
    """Record `rank.start`, and `rank.imports` from the process's start to the body's end.

    Nobody looks for garbage meanwhile, nor among what was imported ever after: that would be a third of the time.
    """
    started = process_start_unix_s()
    ledger.event("rank.start", unix_s=started, pid=os.getpid(), is_forked="torch" in sys.modules)
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
    ledger.elapsed("rank.imports", started)


def leave() -> None:
    """End now. All that matters is on disk, and unloading torch only takes time, or aborts in gloo's threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
