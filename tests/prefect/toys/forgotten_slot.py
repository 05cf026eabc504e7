"""A run whose slot the server knows nothing of, as after a restart: it ends once it has been told so."""

from __future__ import annotations

import logging
import threading
import uuid

from prefect import flow_engine

import headway.flows.retrain_flow  # noqa: F401

LEASE_S = 2.0


class Told(logging.Handler):
    """Sets its event when somebody warns."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), flush=True)
        self.event.set()


if __name__ == "__main__":
    told = Told()
    logging.getLogger("headway.flows.prefect_api.concurrency_lease").addHandler(told)
    with flow_engine.maintain_concurrency_lease(uuid.uuid4(), LEASE_S, raise_on_lease_renewal_failure=True):
        assert told.event.wait(120)
        # Prefect's own would have ended this by then: it waits for a second or two between its three tries.
        threading.Event().wait(5 * LEASE_S)
    print("went on")
