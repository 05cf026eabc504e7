"""Endings of a detached run, on a real Slurm: the job or the next one goes on, whoever was killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.launcher import Handle
from tests.cluster.prerequisites import why_no_slurm
from tests.cluster.slurm import SlurmCluster, slurm_cluster
from tests.cluster.test_slurm import SPEC, Run
from tests.soak.orphan_table import Trial
from tests.soak.orphan_trials import GANG, NEXT_STEP_S, fault, newest_attempt, pid_of

SUPERVISOR = "supervisor"
"""Its death ends the job: the flow has another queued."""
FOREVER = {"max_attempts": 1000, "max_cycles_without_progress": 1000}


def job_trials(folder: Path) -> Iterator[list[Trial]]:
    """Raises `RuntimeError`: no Slurm can be had here; says why."""
    if reason := why_no_slurm():
        raise RuntimeError(reason)
    (folder / "slurm").mkdir()
    with slurm_cluster(folder / "slurm") as cluster, mock.patch.dict(os.environ, cluster.variables):
        while True:
            yield one_run(cluster, folder / "run")


def one_run(cluster: SlurmCluster, folder: Path) -> list[Trial]:
    """A job whose rank, agent, guard and supervisor are killed in turn."""
    folder.mkdir()
    spec: LaunchSpec = SPEC.model_copy(update=FOREVER)
    run, enough = Run(folder, spec, agents="real", cluster=cluster), folder / "enough"
    flow = run.start_flow(spec, "--children", "--until", str(enough))
    try:
        trials = [kill_one(run, victim) for victim in (*GANG, SUPERVISOR)]
        enough.touch()
        assert flow.wait(300) == 0, run.logs()
        return trials
    finally:
        flow.kill()
        flow.wait()
        cluster.cancel_all()
        shutil.rmtree(folder, ignore_errors=True)


def kill_one(run: Run, victim: str) -> Trial:
    run.wait_for_step(attempt=max(1, newest_attempt(run.folder)))
    pid = _supervisor(run) if victim == SUPERVISOR else pid_of(run.folder, victim)
    # A supervisor's end is followed by another job, which Slurm starts when it likes.
    target_s = None if victim == SUPERVISOR else NEXT_STEP_S
    trial = Trial(where="slurm", victim=victim, how="SIGKILL", target_s=target_s)
    return fault(trial, run.folder, lambda: os.kill(pid, signal.SIGKILL))


def _supervisor(run: Run) -> int:
    handle = Handle.load(run.folder)
    assert handle is not None
    return handle.owner_pid
