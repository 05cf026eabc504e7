"""Launcher `slurm`: a run is one job; its batch step is the supervisor, which starts a guard on every node by `srun`.

A job's name is its run's key, so that whoever comes later finds it; and Slurm itself lets no two jobs of one user and
name run at once.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.diagnosis.logs import last_lines
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobRequest
from headway.training.launch.jobs.scheduler import JobReport, SchedulerSilent, run_key
from headway.training.launch.slurm.batch_script import (
    batch_script,
    names_a_file_of_machines,
    place_options,
    script,
    shape_options,
)
from headway.training.launch.slurm.commands import (
    completed,
    listed_jobs,
    number_of,
    read_job,
    report_of_failure,
    run_command,
    sbatch,
)

GLANCE_S = 5.0
"""How long a command may take that is given while a gang is not watched for it."""
SUBMIT_S = 60.0
"""How long a controller that cannot be reached is asked again before a job is not queued."""
SETTLE_S = 180.0
"""How long a job may take from its end, or from being requeued, until it is gone or pending."""
TRY_AGAIN_S = 2.0
NOW_S = 60.0
"""What a scheduler starts so soon, it starts now: it looks at its queue from time to time."""
_STARTS = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")


class Slurm:
    name = "slurm"

    def key(self, run_dir: Path) -> str:
        return run_key(run_dir)

    def render(self, order: JobRequest, now_unix_s: float) -> str:
        key = self.key(Path(order.gang["run_dir"]))
        return batch_script(order.spec, order.to_gang(), key, now_unix_s, order.without)

    def find(self, key: str) -> str | None:
        """Raises:
        SchedulerSilent: Slurm cannot be asked now.
        EnvironmentProblem: nor later.
        """
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            jobs = self._jobs(key)
            # A requeued job is COMPLETING until it is pending again; queueing another meanwhile would make two.
            settled = [job for job, word in jobs.items() if word != "COMPLETING"]
            if settled or not jobs:
                # The first that was queued, so that two flows which look at once agree.
                return min(settled, key=number_of, default=None)
            # It is over, or on its way back into the queue; only then can it be said which.
            if time.monotonic() > deadline_s:
                raise EnvironmentProblem(
                    f"Slurm has been completing job {', '.join(jobs)} for {SETTLE_S:g} s.",
                    where=f"job {key}",
                    advice="Ask who looks after the cluster: a node may not answer. Then retrain.",
                )
            time.sleep(TRY_AGAIN_S)

    def _jobs(self, key: str) -> dict[str, str]:
        """State by job, of all under the key."""
        return listed_jobs(key)

    def submit(self, order: JobRequest) -> JobHandle:
        """Raises `EnvironmentProblem`: Slurm refused, in its own words, or cannot be asked."""
        run_dir = Path(order.gang["run_dir"])
        key = self.key(run_dir)

        def rendered(without: Sequence[str]) -> str:
            return self.render(order.model_copy(update={"without": tuple(without)}), time.time())

        job = self._submitted(key, rendered, order.without, run_dir)
        return JobHandle(
            launcher=self.name, job=job, key=key, order=order.order, log=str(DetachedFiles(run_dir).log(job))
        )

    def _submitted(
        self, key: str, rendered: Callable[[Sequence[str]], str], without: Sequence[str], run_dir: Path
    ) -> str:
        """The job under the key, queued now unless it is there; without those machines, if the others will do."""
        deadline_s = time.monotonic() + SUBMIT_S
        while True:
            try:
                # Before each try: one that got no answer may have been heard all the same.
                return self.find(key) or self._queued(rendered, without, run_dir)
            except SchedulerSilent:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(TRY_AGAIN_S)

    def _queued(self, rendered: Callable[[Sequence[str]], str], without: Sequence[str], run_dir: Path) -> str:
        try:
            return sbatch(rendered(without), run_dir)
        except SchedulerSilent:
            raise
        except EnvironmentProblem:
            if not without:
                raise
            # Excluded machines are a wish: a partition may be too small without them, and sbatch then refuses.
            return sbatch(rendered(()), run_dir)

    def dry_run(self, spec: LaunchSpec, gang: Gang) -> None:
        """Have Slurm look at the run's job without queueing it.

        Raises:
            EnvironmentProblem: it would refuse it, in its own words, or cannot be asked.
        """
        script = batch_script(spec, gang, self.key(gang.run_dir), time.time())
        # `--test-only` validates against partitions and limits, and says why; nothing is queued.
        run_command("sbatch", "--test-only", f"--chdir={gang.run_dir}", stdin=script)

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        try:
            return read_job(run_command("scontrol", "--oneliner", "show", "job", handle.job))
        except EnvironmentProblem as problem:
            return report_of_failure(problem)

    def log_tail(self, handle: JobHandle, lines: int) -> list[str]:
        return last_lines(Path(handle.log), lines)

    def cancel(self, handle: JobHandle) -> None:
        run_command("scancel", handle.job)


def has_capacity_beside(spec: LaunchSpec, gang: Gang, machines: Collection[str]) -> bool:
    """Whether Slurm would start one more node of the gang's now, on none of those, and nobody waits in its queue.

    Asked where a gang is watched meanwhile: no answer within some seconds is a No.
    """
    if any(names_a_file_of_machines(option) for option in spec.slurm.sbatch_options):
        # Which machines such a file names is known to sbatch alone, so nothing can be said of the rest.
        return False
    options = {**shape_options(spec, replace(gang, nodes=1), time.time()), **place_options(spec, machines)}
    try:
        # Which looks at what runs, and past what waits.
        message = completed("sbatch", "--test-only", stdin=script(spec, options, ("true",)), within_s=GLANCE_S).stderr
        among = () if spec.slurm.partition is None else (f"--partition={spec.slurm.partition}",)
        if completed("squeue", "--noheader", "--states=PENDING", *among, within_s=GLANCE_S).stdout.strip():
            return False
    except EnvironmentProblem:
        return False
    found = _STARTS.search(message)
    soon = datetime.datetime.now() + datetime.timedelta(seconds=NOW_S)  # as Slurm tells it, in the time of this place
    return found is not None and datetime.datetime.fromisoformat(found[1]) < soon
