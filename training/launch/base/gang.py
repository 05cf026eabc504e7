"""What is launched, and how: the `launch` branch of the pipeline file, and the pure functions that render a gang."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.places import COMPILED
from headway.training.config.durations import Seconds
from headway.training.config.launcher_specs import KubernetesSpec, SlurmSpec, SshSpec
from headway.training.config.loader_spec import LoaderSpec
from headway.training.launch.base import fence, protocol
from headway.training.launch.base.host_facts import PATIENCE_S
from headway.training.launch.base.host_probe import Member
from headway.training.launch.base.stop_request import NEVER, StopRequest

LONE_AGENT = Path(__file__).parents[1] / "node" / "lone_agent.py"
TORCHRUN_AGENT = Path(__file__).parents[1] / "node" / "torchrun_agent.py"
AGENT_SHUTDOWN_S = 3600
"""The guard keeps the grace; the agent's own shorter limit would cut it."""

# Keys of trackers, servers and collectors, and the variables of an outer gang: either would reach a user's recipe.
_NOT_INHERITED = ("PREFECT_", "MLFLOW_", "HEADWAY_", "OTEL_EXPORTER_", "TORCHELASTIC_", "PET_")
_NOT_INHERITED_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"}
    | {"ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "PYTHONHOME", "PYTHONSTARTUP"}
)
_OF_THE_MACHINE = ("SSH_", "XDG_", "DBUS_", "SLURM_", "SLURMD_", "TMUX")
_OF_THE_MACHINE_NAMES = frozenset(
    {"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "PWD", "OLDPWD", "TMPDIR", "TEMP", "TMP", "TERM"}
    | {
        COMPILED,
        "DISPLAY",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
    }
)


class DetachedSpec(Frozen):
    """What binds a run that a scheduler holds and the flow that watches it."""

    lease_s: Seconds = Field(
        900.0,
        gt=0,
        description="Seconds without a flow that watches, after which the run keeps a checkpoint and stops.",
    )
    unreachable_s: Seconds = Field(
        900.0, gt=0, description="Seconds without an answer of the scheduler's, after which a flow gives up watching."
    )


class PreflightSpec(Frozen):
    """What hosts have to be like before ranks are started on them."""

    environment: tuple[str, ...] = Field(
        default=(), description="Names of variables that ranks need, such as those of secrets; values stand nowhere."
    )
    min_free_bytes: int = Field(0, ge=0, description="Free on the file system that checkpoints are written to.")
    max_clock_skew_s: Seconds = Field(
        5.0, gt=0, description="Seconds that a host's clock may be off the launching machine's."
    )
    max_resolve_s: float = Field(
        1.0, gt=0, lt=PATIENCE_S, description="Seconds that a host's name service may take; each process group asks it."
    )
    min_bytes_per_s: float = Field(1e6, ge=0, description="Between one host and the next.")
    max_latency_s: float = Field(0.1, gt=0, description="Between one host and the next.")


class LaunchSpec(Frozen):
    """How a run is launched; nothing here changes what is learnt."""

    launcher: Literal["local", "ssh", "slurm", "kubernetes"] = Field(
        "local",
        description="Where agents run: `local` starts them on this machine, `ssh` on the hosts of a list, "
        "`slurm` as a job in its queue, `kubernetes` as the pods of a job.",
    )
    ssh: SshSpec | None = Field(None, description="Of launcher `ssh`: its hosts.")
    slurm: SlurmSpec = Field(default_factory=SlurmSpec, description="Of launcher `slurm`: where and how long.")
    kubernetes: KubernetesSpec | None = Field(None, description="Of launcher `kubernetes`: its pods.")
    detached: DetachedSpec = Field(
        default_factory=DetachedSpec,
        description="Of launchers `slurm` and `kubernetes`: timeouts between job and monitoring flow.",
    )
    nodes: int = Field(2, ge=1, description="Number of torchrun agents.")
    ranks_per_node: int = Field(1, ge=1, description="Worker processes of each agent.")
    nodes_per_rack: int = Field(
        1,
        ge=1,
        description="Consecutive nodes that share a switch; with more than one rank a node, sums of gradients leave a "
        "rack once. 1: nobody knows.",
    )
    min_nodes: int | None = Field(
        None, ge=1, description="Fewest agents to continue with when hosts are lost; `nodes` without it."
    )
    max_attempts: int = Field(5, ge=1, description="Attempts before lost ranks or machines fail the run.")
    max_cycles_without_progress: int = Field(
        3, ge=1, description="Failed attempts in a row that came no further than an earlier one, before giving up."
    )
    stop_grace_s: Seconds = Field(
        20.0, ge=0, description="Seconds for ranks to save a checkpoint after a stop request."
    )
    lost_grace_s: Seconds = Field(5.0, ge=0, description="The same when the launching process is gone.")
    peer_grace_s: Seconds = Field(2.0, ge=0, description="The same when another rank was lost.")
    lease_s: Seconds = Field(
        15.0,
        gt=0,
        description="Seconds without a word of the launching process that end the part of another host.",
    )
    owner_lease_s: Seconds = Field(
        60.0,
        gt=0,
        description="Of a workspace in object storage: seconds without a sign of life of the machine that has a run, "
        "after which another may take it over.",
    )
    start_deadline_s: Seconds = Field(120.0, gt=0, description="Seconds without a sign of life before the first step.")
    progress_deadline_s: Seconds = Field(
        120.0,
        gt=0,
        description="Most seconds without a step or a sign of life before an attempt is ended. Once steps are known to "
        "be short, a missing one ends it sooner: after `min_progress_deadline_s` and ten times what they take (p99).",
    )
    min_progress_deadline_s: Seconds = Field(
        30.0, gt=0, description="Least such seconds, however short steps are; `progress_deadline_s` goes before it."
    )
    collective_timeout_s: Seconds = Field(
        120.0,
        ge=1,
        description="Most seconds that a rank waits for its peers within a step before it fails. More for steps whose "
        "ranks may differ by minutes; `progress_deadline_s` has to be longer, too.",
    )
    stragglers: Literal["report", "rebalance", "exclude"] = Field(
        "report",
        description="What comes of a rank that the others wait for: `report` names it; `rebalance` gives it fewer "
        "micro-batches of a step, as measured, where each rank has the whole model; `exclude` also drops its host from "
        "the next step on if other hosts can take its place or fewer are faster.",
    )
    speeds: dict[Annotated[str, Field(min_length=1)], Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        {},
        description="How fast hosts, or kinds of device, are beside each other, by name; 1 for all others. A rank has "
        "as many micro-batches of a step as it is fast, where each has the whole model.",
    )
    backoff_s: Seconds = Field(
        1.0, ge=0, description="Wait before another attempt after one without progress; doubles."
    )
    max_backoff_s: Seconds = Field(30.0, ge=0, description="Longest wait between attempts.")
    preflight: PreflightSpec = Field(
        default_factory=PreflightSpec, description="What is looked at before any rank is started."
    )
    use_tuning: bool = Field(
        True,
        description="Whether what `headway tune` measured on equal hardware and versions takes the place of defaults; "
        "what this file says goes before it.",
    )
    loader: LoaderSpec = Field(default_factory=LoaderSpec, description="How ranks get at the shards.")

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def is_detached(self) -> bool:
        """Whether the supervisor lives in a scheduler's job, and goes on without the flow."""
        return self.launcher in ("slurm", "kubernetes")

    @model_validator(mode="after")
    def _ignores_no_setting(self) -> Self:
        message = {"slurm": self.slurm != SlurmSpec(), "kubernetes": self.kubernetes is not None}
        for name in (name for name, is_stated in message.items() if is_stated and name != self.launcher):
            raise ValueError(
                f"`{name}` is said, but the launcher is {self.launcher!r}: say `launcher: {name}`, or neither"
            )
        if self.launcher == "kubernetes" and self.kubernetes is None:
            raise ValueError(
                "launcher kubernetes needs its pods: "
                "kubernetes: {image: IMAGE, volumes: [{claim: NAME, mount_path: /workspace}]}"
            )
        return self

    @model_validator(mode="after")
    def _has_its_hosts(self) -> Self:
        if self.min_nodes is not None and self.min_nodes > self.nodes:
            raise ValueError(f"min_nodes ({self.min_nodes}) is more than nodes ({self.nodes})")
        if self.launcher == "ssh" and self.ssh is None:
            raise ValueError("launcher ssh needs its hosts: ssh: {hosts: [a, b]}")
        if self.launcher == "ssh" and self.ssh is not None and len(self.ssh.hosts) < self.nodes:
            raise ValueError(f"{self.nodes} nodes need as many hosts; ssh.hosts names {len(self.ssh.hosts)}")
        return self


class SteplessLaunchSpec(LaunchSpec):
    """Of a gang without steps, which proves, evaluates or exports: it shows by pulses that it moves."""

    busy_deadline_s: Seconds = Field(
        1800.0, gt=0, description="Seconds that one call, such as `torch.export` of a large model, may work silently."
    )


_NOT_DETACHED: dict[str, Any] = {"launcher": "local", "slurm": {}, "kubernetes": None}


def for_stepless_work(spec: LaunchSpec) -> SteplessLaunchSpec:
    """The same for a gang without steps: what says nothing and does nothing is late as soon as a missing step is.

    It runs beside the flow where a scheduler has the training: no queue is waited for, for seconds of work.
    """
    return SteplessLaunchSpec(**spec.model_dump() | (_NOT_DETACHED if spec.is_detached else {}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Gang:
    """Ranks that run one module together."""

    module: str
    arguments: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    import_path: tuple[str, ...]
    """What ranks import from, first wins: the frozen code archive, then the user's project."""
    run_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    num_threads: int = 1
    possible_nodes: frozenset[int] | None = None
    """Numbers of nodes that can share its work; None: any."""
    stop: StopRequest = NEVER
    """Until when its attempts may go on."""
    continued_by: str = "the same command"
    """What a person types to continue it once it has stopped."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    # Ranks that split a model share a batch evenly; another number of hosts leaves some idle.
    def max_nodes(self, num_hosts: int) -> int:
        """How many nodes it can have on so many hosts; 0 when none."""
        numbers = range(1, min(self.nodes, num_hosts) + 1)
        return max((n for n in numbers if self.possible_nodes is None or n in self.possible_nodes), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One fresh gang, whose membership is fixed."""

    number: int
    folder: Path
    token: str
    rendezvous_id: str
    members: tuple[Member, ...]
    """Where its nodes stand; rank 0 of the first has the store."""
    owner_pid: int


def attempt_folder(run_dir: Path, number: int) -> Path:
    return run_dir / "attempts" / f"{number:03d}"


def leader_spools(run_dir: Path) -> list[Path]:
    """What rank 0 of each attempt has written down, the first attempt's first."""
    # By number, since the thousandth attempt's name has a digit more.
    folders = (folder for _, folder in sorted(protocol.attempt_numbers(run_dir / "attempts").items()))
    return [spool for folder in folders if (spool := protocol.AttemptFiles(folder).rank_spool(0)).exists()]


def agent_argv(gang: Gang, attempt: Attempt, node: int, python: str) -> tuple[str, ...]:
    """The agent's command on one node: torchrun's, where there is anybody to meet."""
    # A gang of one rank has nobody to meet, and torchrun's import of torch would be most of its start.
    if gang.world_size > 1:
        return torchrun_argv(gang, attempt, node, python)
    log_dir = protocol.AttemptFiles(attempt.folder).rank_logs(node)
    return (python, "-P", str(LONE_AGENT), str(log_dir), attempt.rendezvous_id, gang.module, *gang.arguments)


def torchrun_argv(gang: Gang, attempt: Attempt, node: int, python: str) -> tuple[str, ...]:
    """Each node is told its number; restarts are the supervisor's alone."""
    return (
        *(python, "-P", str(TORCHRUN_AGENT)),
        f"--nnodes={gang.nodes}",
        f"--nproc-per-node={gang.ranks_per_node}",
        # A restart inside the agent keeps its store, and with it the addresses of ranks that are gone.
        "--max-restarts=0",
        "--rdzv-backend=fixed",
        f"--rdzv-id={attempt.rendezvous_id}",
        f"--rdzv-conf=node={node}",
        # Without it the agent asks DNS for its own name, which takes 10 s where no resolver answers.
        f"--local-addr={attempt.members[node].address}",
        # The guard decides when patience ends; torchrun's default of 30 s would cut a longer grace short.
        f"--shutdown-timeout={AGENT_SHUTDOWN_S}",
        "--monitor-interval=0.1",
        f"--log-dir={protocol.AttemptFiles(attempt.folder).rank_logs(node)}",
        "--redirects=3",
        "-m",
        gang.module,
        *gang.arguments,
    )


def _endpoint(host: Member) -> str:
    return f"[{host.address}]:{host.port}" if ":" in host.address else f"{host.address}:{host.port}"


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the owner's environment ranks may see: no tracker's or orchestrator's keys, no outer gang's place."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _NOT_INHERITED_NAMES and not name.startswith(_NOT_INHERITED)
    }


def _carried_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited_environment(environ).items()
        if name not in _OF_THE_MACHINE_NAMES and not name.startswith(_OF_THE_MACHINE)
    }


def rank_environment(
    gang: Gang, attempt: Attempt, spec: LaunchSpec, node: int, environ: Mapping[str, str], *, is_local: bool
) -> dict[str, str]:
    """The environment of agent and ranks of one node, except `PYTHONPATH`; see `rank_python_path`.

    Args:
        is_local: whether all nodes are this machine; on another, what describes a machine or a login is its own.
    """
    interface = attempt.members[node].interface
    return {
        **(inherited_environment(environ) if is_local else _carried_environment(environ)),
        **gang.environment,
        # With another number of threads the sums of a matrix product come out with other bits.
        "OMP_NUM_THREADS": str(gang.num_threads),
        # A rank that is killed loses what is still in its buffers, which is what explains its death.
        "PYTHONUNBUFFERED": "1",
        # Keeps the working folder off the import path, where a user's modules would shadow Headway's.
        "PYTHONSAFEPATH": "1",
        # They listen on the interface that peers reach them by, and on no other.
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        # torchrun's --rdzv-endpoint: `ps` shows command lines to everybody, who could take the port before rank 0.
        "PET_RDZV_ENDPOINT": _endpoint(attempt.members[0]),
        protocol.TOKEN: attempt.token,
        protocol.ATTEMPT: str(attempt.number),
        protocol.ATTEMPT_DIR: str(attempt.folder),
        protocol.FENCE: str(attempt.folder / fence.NAME),
        protocol.NODE: str(node),
        # All local nodes share this machine's processors and memory; ranks divide them by this number.
        protocol.RANKS_HERE: str(spec.ranks_per_node * (spec.nodes if is_local else 1)),
        # Of a gang that has lost hosts nobody knows which of the others stand together.
        protocol.NODES_PER_RACK: str(spec.nodes_per_rack if len(attempt.members) == spec.nodes else 1),
        protocol.COLLECTIVE_TIMEOUT_S: f"{spec.collective_timeout_s:g}",
        **_moving_environment(spec, attempt.members[node]),
        protocol.STOP_GRACE_S: f"{spec.stop_grace_s:g}",
        **gang.stop.environment(),
    }


def _moving_environment(spec: LaunchSpec, member: Member) -> dict[str, str]:
    """What a rank has to know of how batches are shared; nothing where they are shared evenly."""
    environment: dict[str, str] = {}
    if spec.stragglers == "rebalance":
        environment[protocol.STRAGGLERS] = spec.stragglers
    if spec.speeds:
        of_host = next((spec.speeds[name] for name in (member.name, member.machine) if name in spec.speeds), None)
        # A kind of device is what the rank alone knows.
        environment[protocol.SPEEDS] = json.dumps(spec.speeds if of_host is None else {"": of_host})
    return environment


def rank_python_path(gang: Gang, environ: Mapping[str, str]) -> str:
    inherited = environ.get("PYTHONPATH", "")
    return os.pathsep.join((*gang.import_path, *filter(None, inherited.split(os.pathsep))))
