"""The job of a run as `sbatch` reads it: how large, how long, where, and what it runs. Pure."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.process_tree import HEADWAY_HOME
from headway.training.launch.jobs.job_request import DetachedFiles

EXCLUDE = "--exclude="
NOTICE_MARGIN_S = 30.0
"""Beyond the ranks' grace: for their supervisor to hear of the notice, and to queue the job again."""


def batch_script(spec: LaunchSpec, gang: Gang, key: str, now_unix_s: float, without: Sequence[str] = ()) -> str:
    """The job of a run: one task a node, and the supervisor as its batch step."""
    options = {
        "job-name": key,
        "comment": f"headway {gang.run_dir.name}",
        **shape_options(spec, gang, now_unix_s),
        # Two jobs of one name and user never run at once: a second flow's job waits
        # instead of training beside the first.
        "dependency": "singleton",
        # A requeued job writes to the same file, and would truncate it.
        "open-mode": "append",
        "output": log_pattern(gang.run_dir, "job-%j.log"),
        **place_options(spec, without),
    }
    # `exec`: the shell is replaced, so Slurm's signals to the batch step reach the supervisor itself.
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
    # A percent sign in a path would be read as one of sbatch's patterns.
    return str(DetachedFiles(run_dir).folder).replace("%", "%%") + f"/{name}"


def supervisor_command(run_dir: str) -> str:
    """Args:
    run_dir: as a shell reads it.
    """
    return f"{shlex.join((sys.executable, '-P', '-m', 'headway.training.launch.supervise.detached'))} {run_dir}"


def script(spec: LaunchSpec, options: Mapping[str, object], commands: Sequence[str]) -> str:
    lines = [f"#SBATCH --{name}={_quoted(str(value))}" for name, value in options.items()]
    return "\n".join(
        (
            "#!/bin/sh",
            *lines,
            # Slurm starts the job again after a lost node, also where the site's default is not to.
            "#SBATCH --requeue",
            *(f"#SBATCH {_joined(option, options)}" for option in spec.slurm.sbatch_options),
            # `--export=ALL` carries the flow's environment; these two must not depend on it.
            f"export PYTHONPATH={shlex.quote(HEADWAY_HOME)} PYTHONSAFEPATH=1",
            *commands,
            "",
        )
    )


def _joined(option: str, options: Mapping[str, object]) -> str:
    """An option of the pipeline file's; of two `--exclude`, sbatch would take the last alone."""
    is_list = option.startswith(EXCLUDE) and not names_a_file_of_machines(option)
    return f"{option},{options['exclude']}" if is_list and "exclude" in options else option


def names_a_file_of_machines(option: str) -> bool:
    """Whether it excludes those that a file lists, which sbatch alone can read."""
    return option.startswith(EXCLUDE) and "/" in option


def limit_s_of(spec: LaunchSpec, gang: Gang, now_unix_s: float) -> float | None:
    """How long a job that starts now may run; the notice comes after the run's own bound, not before it."""
    notice_s = spec.stop_grace_s + NOTICE_MARGIN_S + 60.0
    # The sooner of the run's end and the configured limit; never less than a supervisor needs to stop in order.
    limits = [gang.stop.at_unix_s - now_unix_s + notice_s, spec.slurm.time_limit_s or math.inf]
    limit_s = max(min(limits), notice_s)
    return None if math.isinf(limit_s) else limit_s


def in_minutes(seconds: float) -> int:
    """Slurm counts in minutes."""
    # Rounded up: rounded down, the notice would come before the run's own end.
    return math.ceil(seconds / 60)


def _quoted(value: str) -> str:
    """For a line of sbatch's, which knows quotes, though not the shell's.

    Raises:
        ConfigError: a second line of it would be run by the shell.
    """
    if not value.isprintable():
        raise ConfigError(
            "has a character that sbatch's own lines cannot hold.",
            where=repr(value),
            advice="Give the workspace a path without line breaks and other control characters.",
        )
    return value if re.fullmatch(r"[\w.,:@%+/=-]+", value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
