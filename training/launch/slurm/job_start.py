"""A start of a Slurm job, from within its batch step."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.jobs.job_start import StartState
from headway.training.launch.jobs.scheduler import JobState
from headway.training.launch.slurm.batch_script import in_minutes, limit_s_of
from headway.training.launch.slurm.commands import read_job, run_command


class SlurmStart:
    scheduler = "Slurm"
    left_status = 0

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises `EnvironmentProblem`: this process runs in no job."""
        self.job = job_of(environ)
        if not self.job:
            raise EnvironmentProblem("this is started by a scheduler alone, in a job.", where="SLURM_JOB_ID")
        self.restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
        self._nodes = environ.get("SLURM_JOB_NODELIST", "") or socket.gethostname()

    def where(self) -> str:
        return self._nodes

    def limit(self, gang: Gang, spec: LaunchSpec) -> None:
        # The limit given at submission counted from then; the job may have waited for hours since.
        limit_s = limit_s_of(spec, gang, time.time())
        # Only a run with an end of its own: otherwise the limit of the partition holds.
        if limit_s is not None and not math.isinf(gang.stop.at_unix_s):
            run_command("scontrol", "update", f"JobId={self.job}", f"TimeLimit={in_minutes(limit_s)}")

    def state(self) -> StartState:
        try:
            shown = run_command("scontrol", "--oneliner", "show", "job", self.job)
        except EnvironmentProblem:
            return StartState.UNKNOWN
        report = read_job(shown)
        # Slurm reuses the job's number when it requeues: another count of restarts is another start.
        if report.state is not JobState.RUNNING or report.restarts != self.restarts:
            return StartState.ENDED
        # Still RUNNING in the table of states, but its processes are being ended.
        return StartState.ENDING if report.reason.startswith("COMPLETING") else StartState.RUNNING

    def is_draining(self) -> bool:
        return False

    def make_room(self) -> None:
        """Puts the job back into the queue; ends its processes."""
        run_command("scontrol", "requeue", self.job)


def job_of(environ: Mapping[str, str]) -> str:
    """As whoever queued it calls it; empty outside of a job."""
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else environ.get("SLURM_JOB_ID", "")
