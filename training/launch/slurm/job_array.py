"""Many runs of one shape as one array of Slurm's: each element is a run's job, with its own supervisor and handle.

An element is known as `JOB_INDEX`, as Slurm's own commands call it, and found by the array's name and its index. The
array's name is made of its runs, in their order, so that whoever asks for the same runs finds it.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.jobs.follower import QUERY_S
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobRequest
from headway.training.launch.jobs.scheduler import JobReport
from headway.training.launch.slurm.batch_script import (
    log_pattern,
    place_options,
    script,
    shape_options,
    supervisor_command,
)
from headway.training.launch.slurm.commands import listed_jobs, read_job, report_of_failure, run_command
from headway.training.launch.slurm.scheduler import Slurm

_ELEMENT = re.compile(r"(?P<name>.+)\[(?P<index>\d+)\]")
_SHOWN_INDEX = re.compile(r"\bArrayTaskId=(\S+)")


class SlurmArrays(Slurm):
    """Slurm, single jobs and elements of arrays alike."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[float, float, str | EnvironmentProblem]] = {}
        """By array: when it was asked for, when the answer was there, and the answer."""

    def array_keys(self, run_dirs: Sequence[Path]) -> list[str]:
        name = array_name(run_dirs)
        return [f"{name}[{index}]" for index in range(len(run_dirs))]

    def submit_array(self, orders: Sequence[JobRequest], at_once: int) -> list[JobHandle]:
        """Raises `EnvironmentProblem`: Slurm refused, in its own words, or cannot be asked."""
        gangs = [order.to_gang() for order in orders]
        run_dirs = [gang.run_dir for gang in gangs]
        keys = self.array_keys(run_dirs)

        def rendered(without: Sequence[str]) -> str:
            return array_script(orders[0].spec, gangs, array_name(run_dirs), at_once, time.time(), without)

        without = sorted({host for order in orders for host in order.without})
        # A living element may have been found instead of a new array; its number begins with the array's.
        array = self._submitted(array_name(run_dirs), rendered, without, run_dirs[0]).partition("_")[0]
        return [
            JobHandle(
                launcher=self.name,
                job=(job := f"{array}_{index}"),
                key=key,
                order=order.order,
                log=str(DetachedFiles(run_dirs[index]).log(job)),
            )
            for index, (key, order) in enumerate(zip(keys, orders, strict=True))
        ]

    def _jobs(self, key: str) -> dict[str, str]:
        found = _ELEMENT.fullmatch(key)
        if found is None:
            return super()._jobs(key)
        jobs = listed_jobs(found["name"])
        return {job: word for job, word in jobs.items() if job.endswith(f"_{found['index']}")}

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        array, _, index = handle.job.partition("_")
        if not index:
            return super().poll(handle)
        try:
            return read_job(line_of(self._whole(array, since_s), int(index), handle.job))
        except EnvironmentProblem as problem:
            return report_of_failure(problem)

    def _whole(self, array: str, since_s: float) -> str:
        """What Slurm shows of all elements, asked once for all who follow one."""
        # Many elements are followed by one thread; one answer of the controller serves them all.
        queried_s, heard_s, shown = self._shown.get(array, (-1.0, -QUERY_S, ""))
        if queried_s < since_s or time.monotonic() - heard_s >= QUERY_S:
            queried_s = time.monotonic()
            try:
                shown = run_command("scontrol", "--oneliner", "show", "job", array)
            except EnvironmentProblem as problem:
                shown = problem
            self._shown[array] = queried_s, time.monotonic(), shown
        if isinstance(shown, EnvironmentProblem):
            raise shown
        return shown


def array_name(run_dirs: Sequence[Path]) -> str:
    # A digest, for Slurm limits a name's length, and the folders of all runs are much longer.
    return f"headway-trials-{sha256_bytes(chr(10).join(str(each.resolve()) for each in run_dirs).encode())[:16]}"


def array_script(
    spec: LaunchSpec,
    gangs: Sequence[Gang],
    name: str,
    at_once: int,
    now_unix_s: float,
    without: Sequence[str] = (),
) -> str:
    """The array of several runs of one shape; an element finds its run by its index."""
    folders = [shlex.quote(str(gang.run_dir)) for gang in gangs]
    # No singleton dependency: all elements have one name, and would run one at a time.
    options = {
        "job-name": name,
        "comment": f"headway {len(gangs)} trials",
        "array": f"0-{len(gangs) - 1}%{at_once}",
        **shape_options(spec, gangs[0], now_unix_s),
        "open-mode": "append",
        # Until an element knows which run it is of; then each writes in its own folder.
        "output": log_pattern(gangs[0].run_dir, "array-%A_%a.log"),
        **place_options(spec, without),
    }
    log = f"{DetachedFiles(Path('$run')).folder}/job-${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID.log"
    commands = (
        'case "$SLURM_ARRAY_TASK_ID" in',
        *(f"{index}) run={folder} ;;" for index, folder in enumerate(folders)),
        "esac",
        # The run's folder is known only inside the element, after Slurm has opened the output.
        f'exec >>"{log}" 2>&1',
        f"exec {supervisor_command(chr(34) + '$run' + chr(34))}",
    )
    return script(spec, options, commands)


def line_of(shown: str, index: int, job: str) -> str:
    """What `scontrol --oneliner show job` says of one element: on a line of its own, or with others that wait.

    Raises:
        EnvironmentProblem: nothing, for that element is forgotten.
    """
    for line in shown.splitlines():
        message = _SHOWN_INDEX.search(line)
        if message is not None and holds(message[1], index):
            return line
    raise EnvironmentProblem(f"invalid job id {job}: the array has no such element any more.", where="Slurm")


def holds(indexes: str, index: int) -> bool:
    """Whether an element is among such as `3`, `0-7%2` or `1,4-6`."""
    for part in indexes.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and int(first) <= index <= int(last or first):
            return True
    return False
