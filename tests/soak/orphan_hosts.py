"""Endings among hosts: of the ssh client, a host, its link, and the supervisor that others stand on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.training.launch.base.gang import LaunchSpec
from tests.cluster.conftest import OwnedRun, ssh_spec
from tests.cluster.namespaces import NamespaceHost, NamespaceHosts, namespace_hosts
from tests.cluster.prerequisites import why_no_hosts
from tests.known_processes import command_of
from tests.soak.orphan_table import CUT_OFF_GONE_WITHIN_S, GONE_WITHIN_S, Trial
from tests.soak.orphan_trials import ENDLESS, Bits, fault, kill_the_supervisor, owned, problem_of

NEXT_STEP_S = 25.0
"""After a host was lost."""
FOREVER = {"max_attempts": 1000, "max_cycles_without_progress": 1000}


def host_trials(folder: Path, bits: Bits) -> Iterator[list[Trial]]:
    """Raises `RuntimeError`: no hosts can be made here; says why."""
    if reason := why_no_hosts():
        raise RuntimeError(reason)
    with namespace_hosts(4) as hosts:
        head = hosts.hosts[0]
        while True:
            with owned(folder / "hosts", ssh_spec(hosts, min_nodes=1, **FOREVER), head) as run:
                run.begin(*bits.words, module="headway.training.programs.worker")
                trials = [one_trial(hosts, run, victim) for victim in ENDINGS]
                equal = bits.are_those_of(run)
                for trial in trials:
                    trial.equal_bits = equal
            trials.append(supervisor_trial(folder, ssh_spec(hosts), head))
            yield trials


def one_trial(hosts: NamespaceHosts, run: OwnedRun, victim: str) -> Trial:
    run.until_it_steps(run.number or 1)
    how, bound_s, happen = ENDINGS[victim]
    trial = Trial(where="ssh", victim=victim, how=how, bound_s=bound_s, target_s=NEXT_STEP_S)
    status = run.files.read_status(1)
    assert status is not None
    (host,) = [host for host in hosts.hosts if host.name == status.host]
    try:
        return fault(trial, run.folder, lambda: happen(run, host), problem=lambda: problem_of(run))
    finally:
        host.mend()
        if host.process is None:
            host.start()


def supervisor_trial(folder: Path, spec: LaunchSpec, head: NamespaceHost) -> Trial:
    with owned(folder / "supervised", spec, head) as run:
        run.begin(*ENDLESS)
        run.until_it_steps(1)
        return kill_the_supervisor(run, "ssh")


def kill_the_client(run: OwnedRun, host: NamespaceHost) -> None:
    (client,) = [
        pid
        for pid in run.processes()
        if command_of(pid).startswith(b"ssh\0") and host.address.encode() in command_of(pid).split(b"\0")
    ]
    os.kill(client, signal.SIGKILL)


ENDINGS: dict[str, tuple[str, float, Callable[[OwnedRun, NamespaceHost], object]]] = {
    "ssh client": ("SIGKILL", GONE_WITHIN_S, kill_the_client),
    "host": ("power cut", GONE_WITHIN_S, lambda _run, host: host.stop()),
    "link": ("cut", CUT_OFF_GONE_WITHIN_S, lambda _run, host: host.cut()),
}
"""By what ends: how, within how long nobody may be left, and what is done to the host of node 1."""
