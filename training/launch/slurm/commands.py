"""Slurm's own commands: how they are given, and what is read from their answers.

What is known of a job is asked of the controller, which forgets it some minutes after its end; accounting may not be
there.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem, shortened
from headway.training.launch.base.gang import inherited_environment
from headway.training.launch.jobs.scheduler import JobReport, JobState, SchedulerSilent

COMMAND_S = 60.0
"""How long one command may take; Slurm's own patience is 10 s a message, several times over."""
_TRANSIENT = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|timed out|reset)|communication|"
    r"resource temporarily unavailable|transport endpoint|zero bytes",
    re.IGNORECASE,
)
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
_SHOWN = ("JobState", "Reason", "ExitCode", "Restarts")
_NOT_CARRIED = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_")


def listed_jobs(name: str) -> dict[str, str]:
    """State by job, of all of that name that are not over; of each element by itself."""
    # `--array` lists elements one by one, which are otherwise folded into ranges while they wait.
    listed = run_command("squeue", "--noheader", "--array", f"--name={name}", "--me", "--format=%i %T")
    return dict(line.split()[:2] for line in listed.splitlines() if line.strip())


def number_of(job: str) -> tuple[int, ...]:
    """Of a job such as `12`, or an array's element such as `12_3`; the one that was queued first is the least."""
    # As numbers: as text, job 9 would come after job 10.
    return tuple(int(part) for part in job.split("_"))


def sbatch(script: str, run_dir: Path) -> str:
    message = run_command("sbatch", "--parsable", "--export=ALL", f"--chdir={run_dir}", stdin=script)
    # A site's own wrapper may have had something to say first.
    numbers = [match[1] for line in message.splitlines() if (match := re.fullmatch(r"(\d+)(;\S+)?", line.strip()))]
    if not numbers:
        raise EnvironmentProblem(f"sbatch named no job; it said {shortened(message, 300)!r}.", where=str(run_dir))
    return numbers[-1]


def report_of_failure(problem: EnvironmentProblem) -> JobReport:
    """Where Slurm had nothing to show."""
    # A controller that forgets a job is an answer; one that does not reply is none.
    state = JobState.FORGOTTEN if _FORGOTTEN.search(str(problem)) else JobState.UNKNOWN
    return JobReport(state=state, reason=str(problem))


def read_job(shown: str) -> JobReport:
    """What `scontrol --oneliner show job` says of one job."""
    # By name: fields change their order, and some are missing, between versions of Slurm.
    found = {name: match[1] if (match := re.search(rf"\b{name}=(\S+)", shown)) else "" for name in _SHOWN}
    # `CANCELLED by 1000` or `CANCELLED+` begin with the word.
    word = found["JobState"].partition("+")[0]
    message = [found["JobState"], *(words for words in (found["Reason"],) if words not in ("", "None"))]
    if found["ExitCode"] not in ("", "0:0"):
        message.append(f"exit status {found['ExitCode']}")
    restarts = int(found["Restarts"]) if found["Restarts"].isdigit() else 0
    return JobReport(state=_STATE_OF.get(word, JobState.UNKNOWN), reason=", ".join(message), restarts=restarts)


def run_command(*words: str, stdin: str | None = None) -> str:
    """What a command of Slurm's printed; raises as `completed` does."""
    return completed(*words, stdin=stdin).stdout


def completed(*words: str, stdin: str | None = None, within_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
    """A command of Slurm's that ended well.

    Raises:
        SchedulerSilent: Slurm's controller could not be reached, or gave no answer in time.
        EnvironmentProblem: it is not there, or it failed; with its own words.
    """
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=within_s,
            # The parser reads English words; `LC_ALL` of a user's shell would translate them.
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
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        # What may pass by itself is asked again; a refusal, such as an unknown partition, is not.
        error_class = SchedulerSilent if _TRANSIENT.search(message) else EnvironmentProblem
        raise error_class(f"`{words[0]}` refused: {shortened(message, 500)}", where="Slurm")
    return done


def _environment(program: str, environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """What a job inherits is what ranks may see; the place in another job, and options by the back door, are not."""
    # Queries run for us, and see our environment; a submission hands its environment to the job.
    if program != "sbatch":
        # Of an array all its elements are named, however many.
        return {**environ, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"}
    kept = inherited_environment(environ)
    # Needed to reach the controller at all, though its prefix is one of those that are dropped.
    conf = {name: value for name, value in kept.items() if name == "SLURM_CONF"}
    return {name: value for name, value in kept.items() if not name.startswith(_NOT_CARRIED)} | conf
