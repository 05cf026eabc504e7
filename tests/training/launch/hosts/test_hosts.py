"""Asking hosts: a transport that starts everything on this machine, but says that it is another."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.hosts.probe import LocalTransport, module_command, probe_hosts, run_on_all

WITHIN_S = 300.0


class Pretended:
    name = "pretended"
    is_local = False
    python = sys.executable

    def __init__(self, *hosts: Host) -> None:
        self._hosts = hosts

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return self._hosts

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        refusal = ("sh", "-c", "echo no such luck >&2; exit 255")
        odd = {"refused": refusal, "mute": ("true",), "hung": ("sleep", "6000")}
        return odd.get(host.name, tuple(argv))


@pytest.mark.process
def test_a_host_says_where_it_stands_and_which_port_is_free_there(tmp_path: Path) -> None:
    found = probe_hosts(Pretended(Host(name="a", address=LOOPBACK)), 1, tmp_path, WITHIN_S)
    (member,) = found.members
    assert (member.name, member.address, member.interface) == ("a", LOOPBACK, "lo")
    assert member.port > 0 and not found.unreachable


@pytest.mark.process
def test_the_address_is_the_one_that_ssh_reached_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.1 50000 {LOOPBACK} 22")
    (member,) = probe_hosts(Pretended(Host(name="a")), 1, tmp_path, WITHIN_S).members
    assert member.address == LOOPBACK
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.7 22")
    assert (
        "has the address 192.0.2.7"
        in probe_hosts(Pretended(Host(name="a")), 1, tmp_path, WITHIN_S).describe_unreachable()
    )


@pytest.mark.process
def test_the_first_that_answer_take_the_nodes_and_every_other_says_why_not(tmp_path: Path) -> None:
    hosts = [Host(name=name, address=LOOPBACK) for name in ("refused", "a", "mute", "b", "c")]
    elsewhere = Host(name="elsewhere", address="192.0.2.1")
    found = probe_hosts(Pretended(elsewhere, *hosts), 2, tmp_path, WITHIN_S)
    assert [member.name for member in found.members] == ["a", "b"]
    assert [spare.name for spare in found.spare_hosts] == ["c"]
    refused, _, mute, *_ = hosts
    assert found.unreachable[refused] == "no such luck"
    assert found.unreachable[mute] == "it gave no answer that can be understood"
    assert "has the address 192.0.2.1" in found.unreachable[elsewhere]


@pytest.mark.process
def test_whoever_stands_on_a_machine_that_is_left_out_is_not_asked_and_others_say_where_they_stand(
    tmp_path: Path,
) -> None:
    stands = {"a": "m-1", "refused": "m-1", "b": "m-2", "mute": "m-3"}
    pods = [Host(name=name, address=LOOPBACK, machine=machine) for name, machine in stands.items()]
    found = probe_hosts(Pretended(*pods), 4, tmp_path, WITHIN_S, without={"m-1", "b"})
    assert list(map(str, found.members)) == ["pod b on m-2"]
    assert found.describe_unreachable() == "pod mute on m-3: it gave no answer that can be understood"


def test_a_host_is_its_own_machine_where_nothing_else_is_said() -> None:
    assert Host(name="a").machine == "a" and str(Host(name="a")) == "a"


@pytest.mark.process
def test_who_answers_is_heard_though_another_hangs() -> None:
    hosts = [Host(name=name) for name in ("hung", "refused")]
    transport = Pretended(*hosts)
    answers = run_on_all(transport, hosts, "none", dict.fromkeys(hosts, ()), within_s=5.0)
    assert [answers[host].problem for host in hosts] == ["no answer within 5 s", "no such luck"]


@pytest.mark.process
def test_a_host_without_the_runs_folder_takes_no_node(tmp_path: Path) -> None:
    found = probe_hosts(Pretended(Host(name="a", address=LOOPBACK)), 1, tmp_path / "nowhere", WITHIN_S)
    assert not found.members and "a file system that all hosts share" in found.describe_unreachable()


def test_this_machine_is_not_asked_and_takes_any_number_of_nodes(tmp_path: Path) -> None:
    found = probe_hosts(LocalTransport(), 3, tmp_path, WITHIN_S)
    assert [(member.address, member.interface) for member in found.members] == [(LOOPBACK, "lo")] * 3


def test_a_module_runs_by_headways_own_code_and_nothing_from_the_folder_it_starts_in() -> None:
    command = module_command(
        LocalTransport(), LocalTransport().hosts(1)[0], "headway.training.launch.node.node_guard", HEADWAY_RUN_TOKEN="t"
    )
    assert command[0] == "env" and command[-2:] == ["-m", "headway.training.launch.node.node_guard"]
    assert {"PYTHONSAFEPATH=1", "HEADWAY_RUN_TOKEN=t"} < set(command)
