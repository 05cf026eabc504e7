"""Asking hosts: a transport that starts everything on this machine, but says that it is another."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.hosts.links import NetworkLink
from headway.training.launch.hosts.probe import CommandResult, LocalTransport, module_command, probe_hosts, run_on_all

WITHIN_S = 300.0


class Pretended:
    name = "pretended"
    is_local = False
    python = sys.executable

    def __init__(self, *hosts: Host, says: Mapping[str, str] = {}) -> None:
        self._hosts, self._says = hosts, says

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return self._hosts

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        refusal = ("sh", "-c", "echo no such luck >&2; exit 255")
        odd = {"refused": refusal, "mute": ("true",), "hung": ("sleep", "6000")}
        odd |= {name: ("printf", "%s", said) for name, said in self._says.items()}
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


FACTS = {"versions": {"Python": "3.11.7"}, "unix_s": 1000.0, "free_bytes": 1}
ANSWER = {"address": LOOPBACK, "interface": "lo", "port": 1, "facts": FACTS}
LIES = {
    "nothing": "null",
    "a number": "0",
    "a list": "[]",
    "an object of nothing": "{}",
    "deep JSON": "[" * 100_000,
    "a number of 5,000 digits": "9" * 5_000,
    "a problem of another type": json.dumps({"problem": ["x"]}),
    "facts of another type": json.dumps({**ANSWER, "facts": []}),
    "facts of nothing": json.dumps({**ANSWER, "facts": {}}),
    "versions of another type": json.dumps({**ANSWER, "facts": {**FACTS, "versions": [1]}}),
    "a version of another type": json.dumps({**ANSWER, "facts": {**FACTS, "versions": {"torch": {}}}}),
    "a clock that is no number": json.dumps({**ANSWER, "facts": {**FACTS, "unix_s": math.nan}}),
    "a clock of 400 digits": json.dumps({**ANSWER, "facts": {**FACTS, "unix_s": 10**400}}),
    "a clock of 300 digits": json.dumps({**ANSWER, "facts": {**FACTS, "unix_s": 1e300}}),
    "free space as words": json.dumps({**ANSWER, "facts": {**FACTS, "free_bytes": "much"}}),
    "a port as words": json.dumps({**ANSWER, "port": "22"}),
    "no port": json.dumps({name: value for name, value in ANSWER.items() if name != "port"}),
}


@pytest.mark.process
def test_whatever_a_host_answers_it_is_a_member_or_says_nothing_that_can_be_understood(tmp_path: Path) -> None:
    """As where a site's profile prints after us, or another program answers in our place."""
    hosts = [Host(name=name) for name in (*LIES, "as we do")]
    transport = Pretended(*hosts, says={**LIES, "as we do": json.dumps(ANSWER)})
    found = probe_hosts(transport, len(hosts), tmp_path, WITHIN_S)
    assert [(member.name, member.port) for member in found.members] == [("as we do", 1)]
    assert set(found.unreachable.values()) == {"it gave no answer that can be understood"}


@pytest.mark.process
def test_a_host_that_says_much_is_quoted_in_a_line(tmp_path: Path) -> None:
    says = {"a": json.dumps({"problem": "no\x1b[31m " * 5_000})}
    found = probe_hosts(Pretended(Host(name="a"), says=says), 1, tmp_path, WITHIN_S)
    assert 100 < len(found.describe_unreachable()) < 2_000


LINK = {"latency_s": 0.1, "bytes_per_s": 1.0}


@pytest.mark.parametrize(
    "said",
    [
        *("", "null", "0", "[]", "{}", "[" * 100_000, json.dumps({"problem": 1})),
        *(json.dumps({**LINK, "bytes_per_s": value}) for value in (math.nan, "fast", 10**400, None, True)),
        json.dumps({**LINK, "latency_s": math.nan}),
    ],
    ids=repr,
)
def test_what_is_no_measure_of_a_link_is_taken_for_none(said: str) -> None:
    """NaN is under no limit and over none."""
    assert CommandResult(stdout=said).read(NetworkLink) == "it gave no answer that can be understood"
    assert CommandResult(stdout=json.dumps(LINK)).read(NetworkLink) == NetworkLink(**LINK)


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
