"""Endings where a Prefect server has the run: its worker is killed, or the flow run is cancelled there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with, sweep
from headway.training.launch.base.protocol import TOKEN as RUN_TOKEN
from tests.prefect.conftest import (
    POLL_EVERY_S,
    TOKEN,
    Service,
    deploy_shipped,
    end,
    new_service,
    serve,
    steps_in,
    working,
    write_project,
)
from tests.soak.orphan_table import Trial
from tests.soak.orphan_trials import measure_end, measure_whole_end
from tests.waiting import wait_until

ENDINGS = (("Prefect worker", "SIGKILL"), ("flow", "cancelled in Prefect"))


def server_trials(folder: Path) -> Iterator[list[Trial]]:
    service = new_service(folder)
    try:
        server = serve(service)
        assert service.prefect("work-pool", "create", "headway", "--type", "process", cwd=folder).returncode == 0
        write_project(folder / "project")
        deploy_shipped(service)
        while True:
            yield [one_trial(service, victim, how) for victim, how in ENDINGS]
        end(server)
    finally:
        sweep(TOKEN, service.token)


def one_trial(service: Service, victim: str, how: str) -> Trial:
    trial = Trial(where="prefect", victim=victim, how=how)
    with working(service) as worker:
        others = service.processes()
        before, flow_run = steps_in(service.folder / "workspace"), service.run("endless")
        try:
            wait_until(lambda: steps_in(service.folder / "workspace") > before, what="steps", every_s=POLL_EVERY_S)
            started_s = _end(service, worker, flow_run, how)
            measure_end(trial, lambda: living(service.folder / "workspace"), started_s)
            measure_whole_end(trial, lambda: service.processes() - others, started_s)
        finally:
            # One whose worker was killed would keep the only place of its deployment.
            service.api(f"flow_runs/{flow_run}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    return trial


def living(workspace: Path) -> list[int]:
    """Ranks, agents and guards of all its runs."""
    handles = [Handle.load(path.parent) for path in workspace.glob("runs/**/launch.json")]
    return [pid for handle in handles if handle is not None for pid in processes_with(RUN_TOKEN, handle.token)]


def _end(service: Service, worker: subprocess.Popen[bytes], flow_run: str, how: str) -> float:
    """Returns when, by the monotonic clock."""
    if how == "SIGKILL":
        os.kill(worker.pid, signal.SIGKILL)
        return time.monotonic()
    assert service.prefect("flow-run", "cancel", flow_run, cwd=service.folder).returncode == 0
    return time.monotonic()
