"""Launcher `slurm`: a run is one job; its batch step is the supervisor, which starts a guard on every node by `srun`.

What is known of a job is asked of the controller, which forgets it some minutes after its end; accounting may not be
there. A job's name is its run's key, so that whoever comes later finds it; and Slurm itself lets no two jobs of one
user and name run at once.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_contracts.errors import EnvironmentProblem
from training.launch.hosts import HEADWAY_HOME
from training.launch.jobs import JobReport, JobState, SchedulerSilent, run_key
from training.launch.logs import last_lines
from training.launch.order import DetachedFiles, JobHandle, Order
from training.launch.spec import Gang, LaunchSpec, inherited_environment

COMMAND_S = 60.0
"""How long one command may take; Slurm's own patience is 10 s a message, several times over."""
GLANCE_S = 5.0
"""The same of one that is given while a gang is not watched for it."""
SUBMIT_S = 60.0
"""How long a controller that cannot be reached is asked again before a job is not queued."""
SETTLE_S = 180.0
"""How long a job may take from its end, or from being requeued, until it is gone or pending."""
TRY_AGAIN_S = 2.0
EXCLUDE = "--exclude="
NOW_S = 60.0
"""What a scheduler starts so soon, it starts now: it looks at its queue from time to time."""
NOTICE_MARGIN_S = 30.0
"""Beyond the ranks' grace: for their supervisor to hear of the notice, and to queue the job again."""

_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|communication|"
    r"resource temporarily unavailable|transport endpoint|zero bytes",
    re.IGNORECASE,
)
_STARTS = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\b")
_FORGOTTEN = re.compile(r"invalid job id", re.IGNORECASE)
_STATES = {
    JobState.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD",
    JobState.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED STAGE_OUT RESIZING SIGNALING",
    JobState.PREEMPTED: "PREEMPTED TIMEOUT NODE_FAIL BOOT_FAIL",
    JobState.CANCELLED: "CANCELLED REVOKED",
    JobState.SUCCEEDED: "COMPLETED",
    JobState.FAILED: "FAILED OUT_OF_MEMORY DEADLINE",
}
_STATE_OF = {word: state for state, words in _STATES.items() for word in words.split()}
_NOT_CARRIED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_")


class Slurm:
    name = "slurm"

    def key(self, run_dir: Path) -> str:
        return run_key(run_dir)

    def render(self, order: Order, now_unix_s: float) -> str:
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
            settled = [job for job, word in jobs.items() if word != "COMPLETING"]
            if settled or not jobs:
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

    def submit(self, order: Order) -> JobHandle:
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
            return sbatch(rendered(()), run_dir)

    def dry_run(self, spec: LaunchSpec, gang: Gang) -> None:
        """Have Slurm look at the run's job without queueing it.

        Raises:
            EnvironmentProblem: it would refuse it, in its own words, or cannot be asked.
        """
        script = batch_script(spec, gang, self.key(gang.run_dir), time.time())
        run_command("sbatch", "--test-only", f"--chdir={gang.run_dir}", stdin=script)

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        try:
            return read_job(run_command("scontrol", "--oneliner", "show", "job", handle.job))
        except EnvironmentProblem as problem:
            return report_of_failure(problem)

    def last_words(self, handle: JobHandle, lines: int) -> list[str]:
        return last_lines(Path(handle.log), lines)

    def cancel(self, handle: JobHandle) -> None:
        run_command("scancel", handle.job)


def listed_jobs(name: str) -> dict[str, str]:
    """State by job, of all of that name that are not over; of each element by itself."""
    listed = run_command("squeue", "--noheader", "--array", f"--name={name}", "--me", "--format=%i %T")
    return dict(line.split()[:2] for line in listed.splitlines() if line.strip())


def number_of(job: str) -> tuple[int, ...]:
    """Of a job such as `12`, or an array's element such as `12_3`; the one that was queued first is the least."""
    return tuple(int(part) for part in job.split("_"))


def batch_script(spec: LaunchSpec, gang: Gang, key: str, now_unix_s: float, without: Sequence[str] = ()) -> str:
    """The job of a run: one task a node, and the supervisor as its batch step."""
    options = {
        "job-name": key,
        "comment": f"headway {gang.run_dir.name}",
        **shape_options(spec, gang, now_unix_s),
        "dependency": "singleton",
        "open-mode": "append",
        "output": log_pattern(gang.run_dir, "job-%j.log"),
        **place_options(spec, without),
    }
    return script(spec, options, (f"exec {supervisor_command(shlex.quote(str(gang.run_dir)))}",))


def shape_options(spec: LaunchSpec, gang: Gang, now_unix_s: float) -> dict[str, object]:
    """How large, how long, and how it hears of its end."""
    limit_s = limit_s_of(spec, gang, now_unix_s)
    return {
        "nodes": gang.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": gang.ranks_per_node * gang.num_threads,
        **({} if limit_s is None else {"time": in_minutes(limit_s)}),
        # To the batch step alone, which is the supervisor: it stops its ranks in order.
        "signal": f"B:TERM@{round(spec.stop_grace_s + NOTICE_MARGIN_S)}",
    }


def place_options(spec: LaunchSpec, without: Collection[str]) -> dict[str, object]:
    slurm = spec.slurm
    named = {"partition": slurm.partition, "account": slurm.account, "qos": slurm.qos}
    return {name: value for name, value in named.items() if value is not None} | _exclude(without)


def _exclude(machines: Collection[str]) -> dict[str, object]:
    return {"exclude": ",".join(sorted(machines))} if machines else {}


def log_pattern(run_dir: Path, name: str) -> str:
    return str(DetachedFiles(run_dir).folder).replace("%", "%%") + f"/{name}"


def supervisor_command(run_dir: str) -> str:
    """Args:
    run_dir: as a shell reads it.
    """
    return f"{shlex.join((sys.executable, '-m', 'training.launch.detached'))} {run_dir}"


def script(spec: LaunchSpec, options: Mapping[str, object], commands: Sequence[str]) -> str:
    lines = [f"#SBATCH --{name}={_quoted(str(value))}" for name, value in options.items()]
    return "\n".join(
        (
            "#!/bin/sh",
            *lines,
            "#SBATCH --requeue",
            *(f"#SBATCH {_joined(option, options)}" for option in spec.slurm.sbatch_options),
            f"export PYTHONPATH={shlex.quote(HEADWAY_HOME)} PYTHONSAFEPATH=1",
            *commands,
            "",
        )
    )


def _joined(option: str, options: Mapping[str, object]) -> str:
    """An option of the pipeline file's; of two `--exclude`, sbatch would take the last alone."""
    is_list = option.startswith(EXCLUDE) and "/" not in option  # else the name of a file that has one
    return f"{option},{options['exclude']}" if is_list and "exclude" in options else option


def has_room_beside(spec: LaunchSpec, gang: Gang, machines: Collection[str]) -> bool:
    """Whether Slurm would start one more node of the gang's now, on none of those, and nobody waits in its queue.

    Asked where a gang is watched meanwhile: no answer within some seconds is a No.
    """
    if any(option.startswith(EXCLUDE) and "/" in option for option in spec.slurm.sbatch_options):
        return False
    options = {**shape_options(spec, replace(gang, nodes=1), time.time()), **place_options(spec, machines)}
    try:
        # Which looks at what runs, and past what waits.
        said = _completed("sbatch", "--test-only", stdin=script(spec, options, ("true",)), within_s=GLANCE_S).stderr
        among = () if spec.slurm.partition is None else (f"--partition={spec.slurm.partition}",)
        if _completed("squeue", "--noheader", "--states=PENDING", *among, within_s=GLANCE_S).stdout.strip():
            return False
    except EnvironmentProblem:
        return False
    found = _STARTS.search(said)
    soon = datetime.datetime.now() + datetime.timedelta(seconds=NOW_S)  # as Slurm tells it, in the time of this place
    return found is not None and datetime.datetime.fromisoformat(found[1]) < soon


def limit_s_of(spec: LaunchSpec, gang: Gang, now_unix_s: float) -> float | None:
    """How long a job that starts now may run; the notice comes after the run's own bound, not before it."""
    notice_s = spec.stop_grace_s + NOTICE_MARGIN_S + 60.0
    limits = [gang.stop.at_unix_s - now_unix_s + notice_s, spec.slurm.time_limit_s or math.inf]
    limit_s = max(min(limits), notice_s)
    return None if math.isinf(limit_s) else limit_s


def in_minutes(seconds: float) -> int:
    """Slurm counts in minutes."""
    return math.ceil(seconds / 60)


def _quoted(value: str) -> str:
    """For a line of sbatch's, which knows quotes, though not the shell's."""
    return value if re.fullmatch(r"[\w.,:@%+/=-]+", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def sbatch(script: str, run_dir: Path) -> str:
    said = run_command("sbatch", "--parsable", "--export=ALL", f"--chdir={run_dir}", stdin=script)
    # A site's own wrapper may have had something to say first.
    numbers = [match[1] for line in said.splitlines() if (match := re.fullmatch(r"(\d+)(;\S+)?", line.strip()))]
    if not numbers:
        raise EnvironmentProblem(f"sbatch named no job; it said {said.strip()[:300]!r}.", where=str(run_dir))
    return numbers[-1]


def report_of_failure(problem: EnvironmentProblem) -> JobReport:
    """Where Slurm had nothing to show."""
    state = JobState.FORGOTTEN if _FORGOTTEN.search(str(problem)) else JobState.UNKNOWN
    return JobReport(state=state, reason=str(problem))


def read_job(shown: str) -> JobReport:
    """What `scontrol --oneliner show job` says of one job."""
    found = {name: match[1] if (match := re.search(rf"\b{name}=(\S+)", shown)) else "" for name in _SHOWN}
    word = found["JobState"].partition("+")[0]
    said = [found["JobState"], *(words for words in (found["Reason"],) if words not in ("", "None"))]
    if found["ExitCode"] not in ("", "0:0"):
        said.append(f"exit status {found['ExitCode']}")
    restarts = int(found["Restarts"]) if found["Restarts"].isdigit() else 0
    return JobReport(state=_STATE_OF.get(word, JobState.UNKNOWN), reason=", ".join(said), restarts=restarts)


_SHOWN = ("JobState", "Reason", "ExitCode", "Restarts")


def run_command(*words: str, stdin: str | None = None) -> str:
    """What a command of Slurm's printed.

    Raises:
        SchedulerSilent: Slurm's controller could not be reached, or gave no answer in time.
        EnvironmentProblem: it is not there, or it failed; with its own words.
    """
    return _completed(*words, stdin=stdin).stdout


def _completed(*words: str, stdin: str | None = None, within_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=within_s,
            env=_environment(words[0], os.environ),
            # An interrupt that a terminal sends to all is ours to answer.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"`{words[0]}` is not installed here.",
            where="launch.launcher: slurm",
            advice="Retrain from a machine that can submit jobs to Slurm.",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerSilent(f"`{words[0]}` gave no answer within {within_s:g} s.", where="Slurm") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        error_class = SchedulerSilent if _TRANSIENT.search(said) else EnvironmentProblem
        raise error_class(f"`{words[0]}` refused: {said[:500]}", where="Slurm")
    return done


def _environment(program: str, environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """What a job inherits is what ranks may see; the place in another job, and options by the back door, are not."""
    if program != "sbatch":
        # Of an array all its elements are named, however many.
        return {**environ, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}
    kept = inherited_environment(environ)
    conf = {name: value for name, value in kept.items() if name == "SLURM_CONF"}
    return {name: value for name, value in kept.items() if not name.startswith(_NOT_CARRIED)} | conf
