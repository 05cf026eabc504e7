"""A flow that moves its progress bar while the server, whose processes are named to it, is halted."""

from __future__ import annotations

import os
import signal
import sys
import time

from prefect import flow

from headway.tasks.core.artifacts import ProgressBar


@flow
def away() -> None:
    bar = ProgressBar("away", "Steps")
    servers = [int(pid) for pid in sys.argv[1:]]
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    for percent in (10, 20, 100):
        bar.move(percent, time.monotonic())
    print("moved")
    for pid in servers:
        os.kill(pid, signal.SIGCONT)


away()
