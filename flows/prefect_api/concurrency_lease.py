"""A run of a deployment continues while Prefect's server is away, or after it has forgotten who holds what.

Every deployment runs one at a time, so that a run holds a slot by a lease, which its process renews. Prefect's own
renewal ends the run after three failures within seconds: a server that is away at such a moment, or that was started
again since it keeps leases in memory, would cost hours of training. A slot that is lost costs less: another run may
start beside this one, and is told who has the run.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections.abc import Iterator
from uuid import UUID

from prefect import flow_engine
from prefect.client.orchestration import get_client
from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

log = logging.getLogger(__name__)

RENEWALS_A_LEASE = 4
ENDS_WITHIN_S = 2.0


def keep_running() -> None:
    """Have Prefect's engine, which enters a run after it has loaded the flow, renew its slot by `renewing`."""
    assert hasattr(flow_engine, "maintain_concurrency_lease"), "another Prefect: see how it renews a run's slot"
    flow_engine.maintain_concurrency_lease = renewing


@contextlib.contextmanager
def renewing(lease_id: UUID, lease_duration: float, **_of_prefect: bool) -> Iterator[None]:
    """While the body runs the lease is renewed, and whatever becomes of it, the body continues.

    Args:
        lease_duration: in seconds.
    """
    ended = threading.Event()
    renewal = threading.Thread(
        target=contextvars.copy_context().run,  # of the run, with its log and its settings
        args=(_renew, lease_id, lease_duration, ended),
        name=f"slot-renewal-{lease_id}",
        daemon=True,
    )
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        # A request that hangs must not hold up the end of a run; the thread is a daemon.
        renewal.join(ENDS_WITHIN_S)


def _renew(lease_id: UUID, lease_duration_s: float, ended: threading.Event) -> None:
    is_reported = False
    with get_client(sync_client=True) as client:
        while not ended.is_set():
            try:
                client.renew_concurrency_lease(lease_id=lease_id, lease_duration=lease_duration_s)
                is_reported = False
            except Exception as error:
                if not is_reported and not ended.is_set():
                    _log().warning("Prefect's server does not renew this run's slot; the run continues: %s", error)
                is_reported = True
            # Several may fail in a row before the server gives the slot to another run.
            ended.wait(lease_duration_s / RENEWALS_A_LEASE)


def _log() -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
    """Of the run, whose page somebody may look at."""
    try:
        return get_run_logger()
    except MissingContextError:
        return log
