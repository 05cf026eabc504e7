"""When it was last seen that alerts arrive: kept for this user, since no workspace is asked for it."""

from __future__ import annotations

import contextlib
import time

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.console.output import write_whole
from headway.flows.prefect_api.server_password import private_folder

FILE = "alerts-delivered.json"


class DeliveredAlerts(BaseModel):
    to: str
    """Alertmanager's address, or a block of a Prefect server."""
    unix_s: float


def keep_delivered(to: str) -> None:
    """Of a delivery that reached a receiver."""
    delivered = DeliveredAlerts(to=to, unix_s=time.time())
    write_whole(private_folder() / FILE, delivered.model_dump_json().encode())


def read_delivered() -> DeliveredAlerts | None:
    """None: never, or nobody can read when."""
    with contextlib.suppress(OSError, ValidationError, EnvironmentProblem):
        return DeliveredAlerts.model_validate_json((private_folder() / FILE).read_bytes())
    return None
