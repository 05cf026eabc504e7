"""Launcher `ssh` over hosts made of namespaces, each with its own sshd: who dies is not missed, and the run goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import OwnedRun, outcome_of, ssh_spec
from tests.cluster.namespaces import NamespaceHost, NamespaceHosts
from tests.known_processes import command_of, is_gone
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def run(hosts: NamespaceHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedRun]:
    """A run of two nodes that goes on for ever, from fault to fault; the third host stands by."""
    # Beyond a cut link ranks live for longer than it takes to notice here: what was lost with it can be said.
    spec = ssh_spec(hosts, max_attempts=1000, max_cycles_without_progress=1000, lease_s=12.0)
    run = OwnedRun(tmp_path_factory.mktemp("run"), spec, hosts.hosts[0], agents="toys")
    run.begin("--steps", "999999", "--children")
    yield run
    run.end()


def host_of(hosts: NamespaceHosts, run: OwnedRun, node: int) -> NamespaceHost:
    status = run.files.read_status(node)
    assert status is not None
    (host,) = [host for host in hosts.hosts if host.name == status.host]
    return host


def client_of(run: OwnedRun, host: NamespaceHost) -> int:
    (client,) = [
        pid
        for pid in run.processes()
        if command_of(pid).startswith(b"ssh\0") and host.address.encode() in command_of(pid).split(b"\0")
    ]
    return client


def whole(run: OwnedRun, num_hosts: int = 2) -> dict[int, str]:
    """All processes of a run in which everybody is at work, with what the ranks started."""
    # On each host a guard, an agent, a rank and its two children; here a client for each.
    run.until_it_steps(run.number or 1)
    wait_until(lambda: len(run.processes()) >= 6 * num_hosts, what=f"{6 * num_hosts} processes")
    return run.processes()


@pytest.mark.parametrize("victim", ["rank", "agent", "guard", "client"])
def test_whoever_is_killed_on_a_host_takes_nobody_along_but_this_attempt(
    hosts: NamespaceHosts, run: OwnedRun, victim: str
) -> None:
    there, attempt = whole(run), run.number
    host, status = host_of(hosts, run, 1), run.files.read_status(1)
    (marker,) = [marker for marker in run.files.read_markers().values() if marker.node == 1]
    assert status is not None

    if victim == "client":
        os.kill(client_of(run, host), signal.SIGKILL)
    else:
        pid = {"rank": marker.pid, "agent": status.agent_pid, "guard": status.guard_pid}[victim]
        host.signal(pid, signal.SIGKILL)

    gone_from(run, there)
    run.until_it_steps(attempt + 1)
    assert run.records()[-1]["failure"]["cause"] == "infrastructure"


def gone_from(run: OwnedRun, there: dict[int, str]) -> None:
    started_s = time.monotonic()
    wait_until(lambda: all(is_gone(pid, started) for pid, started in there.items()), what="the end of the attempt")
    print(f"nobody left after {time.monotonic() - started_s:.1f} s")


@pytest.mark.parametrize("node", [0, 1])
def test_without_a_host_the_run_goes_on_elsewhere_and_a_host_that_is_back_joins_the_next_attempt(
    hosts: NamespaceHosts, run: OwnedRun, node: int
) -> None:
    """Node 0 hosts the rendezvous."""
    there, attempt = whole(run), run.number
    lost = host_of(hosts, run, node)
    lost.stop()
    gone_from(run, there)
    run.until_it_steps(attempt + 1)
    assert lost.name not in {host_of(hosts, run, number).name for number in (0, 1)}
    assert lost.address in run.events("host.missing")[-1]["what"]

    lost.start()
    there, attempt = whole(run), run.number
    os.kill(client_of(run, host_of(hosts, run, 0)), signal.SIGKILL)
    gone_from(run, there)
    run.until_it_steps(attempt + 1)
    assert lost.name in {host_of(hosts, run, number).name for number in (0, 1)}


def test_what_runs_beyond_a_cut_link_ends_by_itself_and_the_run_goes_on_elsewhere(
    hosts: NamespaceHosts, run: OwnedRun
) -> None:
    there, attempt = whole(run), run.number
    lost = host_of(hosts, run, 1)
    lost.cut()
    try:
        gone_from(run, there)
        run.until_it_steps(attempt + 1)
        unreachable = [event for event in run.events("host.unreachable") if event["attempt"] == attempt]
        assert [event["host"] for event in unreachable] == [lost.address]
        assert "and with it rank 1 on " in next(
            each["failure"]["what"] for each in run.records() if each["attempt"] == attempt
        )
        assert lost.name not in {host_of(hosts, run, number).name for number in (0, 1)}
    finally:
        lost.mend()


def test_a_halted_owner_is_taken_for_gone_and_goes_on_when_it_is_back(hosts: NamespaceHosts, run: OwnedRun) -> None:
    there, attempt = whole(run), run.number
    clients = {client_of(run, host_of(hosts, run, node)) for node in (0, 1)}
    run.signal_owner(signal.SIGSTOP)
    gone_from(run, {pid: started for pid, started in there.items() if pid not in clients})
    run.signal_owner(signal.SIGCONT)
    run.until_it_steps(attempt + 1)


def test_nothing_on_any_host_outlives_its_owner_and_the_next_one_goes_on(hosts: NamespaceHosts, run: OwnedRun) -> None:
    there = whole(run)
    run.signal_owner(signal.SIGKILL)
    gone_from(run, there)
    run.begin("--steps", str(max(run.step_of(number) for number in range(1, run.number + 1)) + 3))
    assert run.ends() == 0, run.message
    assert outcome_of(run)["state"] == "done"


def test_a_halted_guard_on_a_host_lets_nobody_outlive_the_owner(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun]
) -> None:
    run = new_run(ssh_spec(hosts), hosts.hosts[0], agents="toys")
    run.begin("--steps", "999999", "--children")
    there = whole(run)
    status = run.files.read_status(1)
    assert status is not None
    host_of(hosts, run, 1).signal(status.guard_pid, signal.SIGSTOP)
    run.signal_owner(signal.SIGKILL)
    gone_from(run, there)


def test_too_few_hosts_that_answer_are_named_with_what_they_said(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun]
) -> None:
    run = new_run(ssh_spec(hosts, nodes=3, max_attempts=1), hosts.hosts[0])
    hosts.hosts[3].cut()
    try:
        run.begin("--steps", "3", nodes=3)
        assert run.ends() != 0
    finally:
        hosts.hosts[3].mend()
    assert "2 of at least 3 hosts can take a node" in run.message and "timed out" in run.message
    assert not run.files.read_markers(), "no rank was started"


def test_a_host_that_does_not_see_the_runs_folder_is_refused_with_advice(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun]
) -> None:
    run = new_run(ssh_spec(hosts, nodes=3, max_attempts=1), hosts.hosts[0])
    blind = hosts.hosts[2]
    hide = [*blind.enter(), "mount", "-t", "tmpfs", "tmpfs", str(Path(run.folder).parent)]
    os.spawnvp(os.P_WAIT, hide[0], hide)
    try:
        run.begin("--steps", "3", nodes=3)
        assert run.ends() != 0
    finally:
        show = [*blind.enter(), "umount", str(Path(run.folder).parent)]
        os.spawnvp(os.P_WAIT, show[0], show)
    assert f"{blind.address}: it does not see {run.folder}" in run.message
