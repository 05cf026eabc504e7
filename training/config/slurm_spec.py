"""What a pipeline file may say to Slurm: the `launch.slurm` branch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from headway.data_contracts.store.documents import Frozen

_Word = Annotated[str, Field(pattern=r"^[\w.,:@+-]+$")]
OURS = frozenset(
    {"array", "chdir", "comment", "dependency", "error", "export", "export-file", "input", "job-name", "no-requeue"}
    | {"nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "time", "wrap"}
)
"""Options of sbatch that follow from the run."""
_INSTEAD = {"time": "`time_limit_s`", "nodes": "`launch.nodes`", "ntasks-per-node": "`launch.ranks_per_node`"}


def _sbatch_option(option: str) -> str:
    name, _, value = option.removeprefix("--").partition("=")
    if not option.startswith("--") or not name.replace("-", "").isalnum():
        raise ValueError(f"{option!r} is no long option of sbatch, such as --gpus-per-node=4")
    if name in OURS:
        advice = f"; say it by {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise ValueError(f"--{name} follows from the run{advice}")
    if not (option.isprintable() and option.isascii()) or set(value) & set("\"'\\"):
        raise ValueError(f"{option!r} has characters that sbatch's own lines cannot hold")
    return option


class SlurmSpec(Frozen):
    """Where in Slurm a run is queued, and for how long."""

    partition: _Word | None = Field(None, description="Partition, or several with commas; empty: Slurm's default.")
    account: _Word | None = Field(None, description="Account that pays; empty: the user's default.")
    qos: _Word | None = Field(None, description="Quality of service; empty: the default.")
    time_limit_s: int | None = Field(
        None,
        ge=60,
        description="Longest a job may run at a time, in seconds; at its end a checkpoint is kept and the job queued "
        "again. Empty: the partition's own limit, or the end of the window.",
    )
    sbatch_options: tuple[Annotated[str, AfterValidator(_sbatch_option)], ...] = Field(
        (), description="More long options of sbatch, such as `--gpus-per-node=4`."
    )
