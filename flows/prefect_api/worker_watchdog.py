"""A flow that a worker started ends when the worker does: with the worker gone, nobody could cancel it."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator

STARTED_BY_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""Prefect sets it for the process of a flow run."""


@contextlib.contextmanager
def ended_with_worker(on_lost: Callable[[], object]) -> Iterator[None]:
    """While the body runs, the worker's end is this process's SIGTERM: training keeps a checkpoint, nothing is left.

    `on_lost` is called first, in another thread. A death signal would not do: it fires when the *thread* ends that
    started us.
    """
    if STARTED_BY_A_WORKER not in os.environ:
        yield
        return
    worker = os.pidfd_open(os.getppid())
    # To wake the thread out of `select`: its end of the pipe becomes readable when the other is closed.
    done, finished = os.pipe()
    is_lost = threading.Event()

    def watch() -> None:
        readable, _, _ = select.select([worker, done], [], [])
        if done not in readable:
            is_lost.set()
            with contextlib.suppress(Exception):
                on_lost()
            # What Prefect sends to cancel a run, so that a checkpoint is kept in the same way.
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch, name="worker-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(finished)
        thread.join()
        os.close(done)
        os.close(worker)
        if is_lost.is_set():
            # This process ends now. It would look once more through all that Prefect and MLflow have loaded for
            # garbage, which takes seconds on a busy machine; what DuckDB says of garbage then, nobody reads.
            gc.freeze()
