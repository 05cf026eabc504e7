"""Four hosts, a Slurm and a Kubernetes, and a run that a process owns, or a flow watches, and others may carry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from headway.training.config.launcher_specs import KubernetesSpec, SshHost, SshSpec, Volume
from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.host_facts import PATIENCE_S
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import descendants, die_with_parent, sweep
from headway.training.launch.base.protocol import TOKEN, AttemptFiles
from headway.training.launch.hosts.probe import HEADWAY_HOME
from headway.training.launch.node.reaper import reaped
from headway.training.observe.ledger import read_events
from tests.cluster.kubernetes_recorder import TOKEN as KUBERNETES_TOKEN
from tests.cluster.kubernetes_recorder import KubernetesRecorder
from tests.cluster.namespaces import NamespaceHost, NamespaceHosts, namespace_hosts
from tests.cluster.prerequisites import why_no_hosts, why_no_slurm
from tests.cluster.slurm import SlurmCluster, slurm_cluster
from tests.cluster.toys import TOY_PATH
from tests.known_processes import command_of, known_processes
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program, forked_helpers

QUICK: dict[str, Any] = {"backoff_s": 0.0, "peer_grace_s": 1.0, "lost_grace_s": 3.0}
"""Ways of being launched that wait for nothing that is not tested."""
PATIENT: dict[str, Any] = {
    **dict.fromkeys(("start_deadline_s", "progress_deadline_s", "min_progress_deadline_s"), DEADLINE_S),
    "preflight": {"min_bytes_per_s": 0, "max_latency_s": DEADLINE_S, "max_resolve_s": 0.99 * PATIENCE_S},
}
"""And take no machine that is busy with other things for a broken one."""


@pytest.fixture(autouse=True)
def helpers_are_forks() -> Iterator[None]:
    """What this machine's own part of a run starts of Headway's; how it starts is asked in its own rooms."""
    with forked_helpers():
        yield


@dataclass
class OwnedRun:
    """A run whose owner is a process on a host of its own."""

    folder: Path
    spec: LaunchSpec
    head: NamespaceHost | None
    """Where the owner runs; None: among the processes of this machine."""
    agents: Literal["real", "toys"] = "real"
    owners: list[subprocess.Popen[str]] = field(default_factory=list)
    owner: str = "tests.cluster.owner"
    """The module that owns it."""

    def begin(self, *words: str, nodes: int = 2, module: str = "toy_worker", spec: LaunchSpec | None = None) -> None:
        told = (spec or self.spec).model_dump_json()
        owner = (self.owner, str(self.folder), told, str(nodes), self.agents, module, *words)
        command = (sys.executable, "-m", *owner) if self.head is None else self.head.runs(*owner)
        with (self.folder / "owner.out").open("ab") as log:
            self.owners.append(
                Program(
                    command,
                    cwd=HEADWAY_HOME,
                    env={**os.environ, "PYTHONPATH": HEADWAY_HOME},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )

    @property
    def message(self) -> str:
        return (self.folder / "owner.out").read_text()

    def ends(self) -> int:
        """The owner's exit status."""
        return self.owners[-1].wait(300)

    def signal_owner(self, number: signal.Signals) -> None:
        started = self.owners[-1].pid
        below = [pid for pid in descendants(started) if self.owner.encode() in command_of(pid)]
        # On a host the owner is below what entered it, which is halted with it.
        for pid in [started, *below] if number is signal.SIGCONT or self.head is None else below:
            os.kill(pid, number)

    @property
    def number(self) -> int:
        """Of the newest attempt."""
        return max((int(path.name) for path in (self.folder / "attempts").glob("[0-9]*")), default=0)

    @property
    def files(self) -> AttemptFiles:
        return AttemptFiles(attempt_folder(self.folder, self.number))

    def step_of(self, attempt: int) -> int:
        spools = attempt_folder(self.folder, attempt).glob("ledger/rank-*.jsonl")
        return max((event["step"] for spool in spools for event in read_events(spool) if "step" in event), default=0)

    def until_it_steps(self, attempt: int) -> None:
        """Until an attempt of at least this number has made a step, with everybody it has."""

        def steps() -> bool:
            assert self.owners[-1].poll() is None, self.message
            up = [event["attempt"] for event in self.events("attempt.start")]
            return (newest := self.number) >= attempt and newest in up and self.step_of(newest) > 0

        wait_until(steps, what=f"a step of attempt {attempt}")

    @property
    def token(self) -> str:
        handle = Handle.load(self.folder)
        assert handle is not None
        return handle.token

    def processes(self) -> dict[int, str]:
        """All of the run on every host, the owner left out: number here, and beginning."""
        handle = Handle.load(self.folder)
        return {} if handle is None else known_processes(TOKEN, handle.token)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder / "owner.jsonl") if event["event"] == name]

    def records(self) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder / "attempts.jsonl") if event["event"] == "attempt"]

    def end(self) -> None:
        for owner in self.owners:
            if owner.poll() is None:
                self.signal_owner(signal.SIGCONT)
                self.signal_owner(signal.SIGKILL)
            owner.wait()
        if Handle.load(self.folder) is not None:
            sweep(TOKEN, self.token)


@pytest.fixture(scope="session")
def hosts() -> Iterator[NamespaceHosts]:
    """Four: the first is where owners run."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    with namespace_hosts(4) as made:
        yield made


def ssh_spec(hosts: NamespaceHosts, **fields: Any) -> LaunchSpec:
    """Hosts 2 to 4 take nodes."""
    named = tuple(SshHost(host=host.address) for host in hosts.hosts[1:])
    ssh = SshSpec(hosts=named, options=hosts.options)
    return LaunchSpec(launcher="ssh", ssh=ssh, **QUICK | PATIENT | {"lease_s": 8.0} | fields)


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if reason := why_no_slurm():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_daemons: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Without work, and the one that this process speaks to."""
    for name, value in slurm_daemons.variables.items():
        monkeypatch.setenv(name, value)
    yield slurm_daemons
    slurm_daemons.cancel_all()


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesRecorder]:
    """Emulated. Its pods end with the tests, and with this process, should it be killed."""
    cluster = KubernetesRecorder(tmp_path_factory.mktemp("kubernetes"))
    with reaped(KUBERNETES_TOKEN, str(cluster.folder), 0.0), pytest.MonkeyPatch.context() as here:
        here.setenv("KUBECONFIG", str(cluster.folder / "kubeconfig"))
        try:
            cluster.serve()
            yield cluster
        finally:
            cluster.stop()


def kubernetes_spec(
    folder: Path, *, toys: bool = True, pods: dict[str, Any] | None = None, **fields: Any
) -> LaunchSpec:
    """Pods that see the folder, and have this environment's Python.

    Args:
        toys: whether agents are toys, which import no torch.
    """
    given: dict[str, Any] = {
        "image": "headway:test",
        "python": sys.executable,
        "volumes": (Volume(claim="shared", mount_path=str(folder)),),
        "environment": {"PYTHONPATH": TOY_PATH if toys else HEADWAY_HOME},
    }
    pods_spec = KubernetesSpec(**given | (pods or {}))
    return LaunchSpec(launcher="kubernetes", kubernetes=pods_spec, **QUICK | PATIENT | fields)


def delete_all(cluster: KubernetesRecorder) -> None:
    """Jobs, and what belongs to them, so that the next test finds a cluster without work."""
    with cluster.lock:
        for item in cluster.objects.values():
            item["metadata"].setdefault("deletionTimestamp", "now")
    wait_until(lambda: not cluster.objects, what="no object")


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[Callable[..., OwnedRun]]:
    runs: list[OwnedRun] = []

    def new_run(spec: LaunchSpec, head: NamespaceHost | None, agents: Literal["real", "toys"] = "real") -> OwnedRun:
        folder = tmp_path / f"run-{len(runs)}"
        folder.mkdir()
        runs.append(OwnedRun(folder, spec, head, agents))
        return runs[-1]

    yield new_run
    for run in runs:
        run.end()


def outcome_of(run: OwnedRun) -> dict[str, Any]:
    value = json.loads(run.message.splitlines()[-1])
    assert isinstance(value, dict)
    return value
