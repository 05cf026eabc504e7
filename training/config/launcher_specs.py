"""What a pipeline file may say to its launcher: the branches `launch.kubernetes`, `launch.ssh` and `launch.slurm`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.durations import Seconds

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Of an object."""
Key = Annotated[
    str,
    StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$", max_length=316),
]
"""Of a label, an annotation or a resource."""
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([-\w.]*[A-Za-z0-9])?)?$", max_length=63)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Quantity = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i|e[0-9]+)?$"),
    Field(coerce_numbers_to_str=True),
]
OURS = "HEADWAY_"
"""Beginning of the variables that follow from the run."""


class Volume(Frozen):
    """A claim that every pod mounts, at the path by which the flow knows it."""

    claim: Name = Field(description="The PersistentVolumeClaim; many nodes must be able to write it.")
    mount_path: str = Field(pattern=r"^/[^:]*$", description="Where pods see it: as this machine does.")
    sub_path: str = Field("", description="Folder within the volume; empty: all of it.")
    read_only: bool = Field(False, description="Whether pods may only read it.")


class SecretKey(Frozen):
    """Where a variable's value comes from; the value itself stands in no file of ours."""

    secret: Name = Field(description="The Secret's name, in the pods' namespace.")
    key: Annotated[str, StringConstraints(pattern=r"^[-\w.]+$")] = Field(description="The key of its data.")


class Toleration(Frozen):
    """A taint of nodes that the pods may have, as in a pod's own `tolerations`."""

    key: Key | None = Field(None, description="The taint's key; empty: any, with `operator: Exists`.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="`Exists` takes a taint of any value.")
    value: LabelValue | None = Field(None, description="The taint's value, for `operator: Equal`.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="The taint's effect; empty: any."
    )
    seconds: int | None = Field(None, ge=0, description="How long a pod stays on a node that gets the taint.")


class KubernetesSpec(Frozen):
    """Which pods a run is made of, and where they may stand. `launch.nodes` is their number."""

    image: str = Field(min_length=1, description="Has Headway and what ranks import; see deployments/docker.")
    volumes: tuple[Volume, ...] = Field(min_length=1, description="One of them holds the workspace.")
    namespace: Name = Field("default", description="The namespace of the jobs and pods.")
    context: str | None = Field(
        None, description="Of the kubeconfig; empty: its current one, or the flow's own cluster."
    )
    training_runtime: Name | None = Field(
        None,
        description="ClusterTrainingRuntime of Kubeflow Trainer on which the run is a TrainJob; empty: the run is an "
        "Indexed Job with a headless Service, which every cluster has.",
    )
    python: str = Field("python", min_length=1, description="The interpreter in the image.")
    resources: Mapping[Key, Quantity] = Field(
        default_factory=dict, description='Of each pod, requested and granted: `cpu`, `memory`, `nvidia.com/gpu: "8"`.'
    )
    shared_memory: Quantity | None = Field(
        None, description="Size of /dev/shm, counted as the pod's memory; empty: the container runtime's 64 MB."
    )
    environment: Mapping[Variable, str] = Field(default_factory=dict, description="Variables of every pod; no secrets.")
    secrets: Mapping[Variable, SecretKey] = Field(
        default_factory=dict, description="Variables whose values are kept in Secrets: {secret: NAME, key: KEY}."
    )
    secret_environments: tuple[Name, ...] = Field(
        (), description="Secrets of which every key is a variable; a TrainJob has them from its runtime."
    )
    node_selector: Mapping[Key, LabelValue] = Field(default_factory=dict, description="Labels that nodes must have.")
    tolerations: tuple[Toleration, ...] = Field((), description="Taints of nodes that the pods tolerate.")
    priority_class: Name | None = Field(None, description="Empty: the default; a TrainJob has it from its runtime.")
    service_account: Name | None = Field(None, description="Empty: the namespace's default, without its token.")
    image_pull_secrets: tuple[Name, ...] = Field(
        (), description="Secrets of the namespace by which its nodes pull the image."
    )
    run_as_user: int | None = Field(
        None, ge=1, description="Number of the user; empty: the image's own, which must be a number other than root's."
    )
    fs_group: int | None = Field(None, ge=0, description="Group that volumes are given to.")
    labels: Mapping[Key, LabelValue] = Field(
        default_factory=dict, description="Of the job and its pods, such as `kueue.x-k8s.io/queue-name`."
    )
    annotations: Mapping[Key, str] = Field(default_factory=dict, description="Of the job and its pods.")
    gather_s: Seconds = Field(
        300.0,
        ge=0,
        description="Seconds to wait for missing pods before continuing with `min_nodes`; for fewer than "
        "those the run waits as in a queue.",
    )

    @model_validator(mode="after")
    def _names_each_variable_once(self) -> Self:
        if twice := sorted(self.environment.keys() & self.secrets.keys()):
            raise ValueError(f"both `environment` and `secrets` name {', '.join(twice)}")
        if ours := sorted(name for name in {*self.environment, *self.secrets} if name.startswith(OURS)):
            raise ValueError(f"{', '.join(ours)}: what begins with {OURS} follows from the run")
        return self

    @model_validator(mode="after")
    def _fits_a_train_job(self) -> Self:
        given = {"secret_environments": self.secret_environments, "priority_class": self.priority_class}
        if self.training_runtime and (lost := [name for name, value in given.items() if value]):
            raise ValueError(
                f"a TrainJob cannot say {' and '.join(lost)}: write it into the runtime {self.training_runtime!r}, "
                "or leave out `training_runtime`"
            )
        return self


_NAME = r"^[A-Za-z0-9_.@:\[\]%-]*$"


class SshHost(Frozen):
    """One host."""

    host: str = Field(min_length=1, pattern=_NAME, description="Its name for ssh: `name`, `user@name` or an alias.")
    address: str = Field(
        "", pattern=_NAME, description="Where the other hosts reach it; without it, the address that ssh reached."
    )


def _named(value: Any) -> Any:
    return {"host": value} if isinstance(value, str) else value


class SshSpec(Frozen):
    """The hosts of launcher `ssh`."""

    hosts: tuple[Annotated[SshHost, BeforeValidator(_named, json_schema_input_type=SshHost | str)], ...] = Field(
        min_length=1, description="Hosts that may take a node, best first; more than `nodes` stand by for lost ones."
    )
    python: str = Field(
        default_factory=lambda: sys.executable,
        min_length=1,
        description="The interpreter on the hosts; without it, the launching one's path.",
    )
    options: Mapping[str, str] = Field(
        default_factory=dict,
        description="Further options, as in ssh_config: `Port`, `IdentityFile`, `ProxyJump`.",
    )
    connect_timeout_s: int = Field(3, ge=1, description="Seconds to wait for a host to answer.")

    @field_validator("hosts")
    @classmethod
    def _each_once(cls, hosts: tuple[SshHost, ...]) -> tuple[SshHost, ...]:
        names = [host.host for host in hosts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named twice: {', '.join(twice)}; a host takes one node, with `ranks_per_node` ranks")
        if dashed := [name for name in names if name.startswith("-")]:
            raise ValueError(f"not the name of a host: {', '.join(dashed)}")
        return hosts


_Word = Annotated[str, Field(pattern=r"^[\w.,:@+-]+$")]
_FROM_THE_RUN = frozenset(
    {"array", "chdir", "comment", "dependency", "error", "export", "export-file", "input", "job-name", "no-requeue"}
    | {"nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "time", "wrap"}
)
"""Options of sbatch that follow from the run."""
_INSTEAD = {"time": "`time_limit_s`", "nodes": "`launch.nodes`", "ntasks-per-node": "`launch.ranks_per_node`"}


def _sbatch_option(option: str) -> str:
    name, _, value = option.removeprefix("--").partition("=")
    if not option.startswith("--") or not name.replace("-", "").isalnum():
        raise ValueError(f"{option!r} is no long option of sbatch, such as --gpus-per-node=4")
    if name in _FROM_THE_RUN:
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
