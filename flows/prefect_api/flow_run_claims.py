"""Flow runs of commands that were killed: Prefect would show them as running for ever, since nobody watches over them.

A command holds a claim for each flow run of its process, beside Prefect's own files of this user. The kernel drops the
claim's lock with the process, so that one with a free lock is proof; whoever next has a server to ask ends its flow run
as Crashed there. Runs of deployments are their worker's, and the automation's that `headway deploy` makes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from uuid import UUID

from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.leftovers import MACHINE, claimed, discard_if_abandoned, is_held
from headway.data_contracts.store.regular_files import read_regular
from headway.flows.prefect_api.server_password import private_folder
from headway.flows.prefect_api.worker_watchdog import STARTED_BY_A_WORKER

log = logging.getLogger(__name__)

UNKNOWN_FOR_S = 30 * 24 * 3600.0
"""For so long a claim waits for the server that knows its flow run."""
held: ContextVar[contextlib.ExitStack | None] = ContextVar("held", default=None)
"""The claims of this command; None where flows run without one, as in tests and under a worker."""


@contextlib.contextmanager
def holding_flow_runs() -> Iterator[None]:
    """Flow runs that begin in the body are claimed until its end, when Prefect has heard of theirs."""
    with contextlib.ExitStack() as claims:
        token = held.set(claims)
        try:
            yield
        finally:
            held.reset(token)


def claim_flow_run(flow_run: UUID | str | None) -> None:
    """Say that this process runs it, if a command does; what cannot be written down costs the claim alone."""
    claims = held.get()
    if claims is None or flow_run is None or STARTED_BY_A_WORKER in os.environ:
        return
    with contextlib.suppress(OSError, HeadwayError):
        path = _folder() / f"{MACHINE}-{flow_run}"
        claims.enter_context(claimed(path))
        claims.callback(path.unlink, missing_ok=True)  # while it is held
        path.write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")


def killed_flow_runs() -> list[Path]:
    """The claims that nobody holds any more; none where that cannot be told."""
    with contextlib.suppress(OSError, HeadwayError):
        return [claim for claim in _folder().glob(f"{MACHINE}-*") if not is_held(claim)]
    return []


def end_killed_flow_runs() -> int:
    """End as Crashed what killed commands of this user and machine left, on the server that is configured.

    Returns:
        How many flow runs were ended. A server that refuses is warned of, and asked again next time.
    """
    ended: list[str] = []
    try:
        for claim in killed_flow_runs():
            # Under the claim's lock, so that of two commands only one ends the flow run.
            discard_if_abandoned(claim, lambda claim=claim: _end(claim, ended))  # type: ignore[misc]
    except Exception as error:
        log.warning("flow runs of killed commands could not be ended in Prefect: %s", error)
    return len(ended)


def _end(claim: Path, ended: list[str]) -> None:
    """The claim goes with its flow run's end, or where no server knew of it for long."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    identity = UUID(claim.name.removeprefix(f"{MACHINE}-"))
    process = read_regular(claim, max_bytes=4096).decode(errors="replace").strip()
    message = f"Its process ({process}) was killed. What was finished is kept; the next retrain resumes."
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(identity)
        except ObjectNotFound:
            if time.time() - claim.stat().st_mtime > UNKNOWN_FOR_S:
                claim.unlink()
            return
        if run.state is None or not run.state.is_final():
            # Forced: rules of Prefect's for changes of state could refuse it, or put another in its place.
            client.set_flow_run_state(identity, Crashed(message=message), force=True)
            for task in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[identity]))):
                if task.state is None or not task.state.is_final():
                    client.set_task_run_state(task.id, Crashed(message=message), force=True)
            ended.append(str(identity))
    claim.unlink()


def _folder() -> Path:
    folder = private_folder() / "flow-runs"
    folder.mkdir(exist_ok=True)
    return folder
