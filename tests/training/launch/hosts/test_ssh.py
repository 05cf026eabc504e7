"""What is said to ssh; the real thing in tests/cluster."""

from __future__ import annotations

import shlex

import pytest
from pydantic import ValidationError

from headway.training.config.launcher_specs import SshSpec
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.host_probe import Host
from headway.training.launch.hosts.ssh import Ssh

GOLDEN = (
    "ssh -T -o ConnectTimeout=3 -o ServerAliveInterval=2 -o ServerAliveCountMax=3 -o LogLevel=ERROR -o Port=2222 "
    "-o BatchMode=yes -o ControlMaster=no -o ControlPath=none -o ClearAllForwardings=yes -o ForwardAgent=no "
    "-o ForwardX11=no -- user@a"
)


def test_the_client_asks_nobody_shares_nothing_and_notices_a_dead_link() -> None:
    transport = Ssh(SshSpec.model_validate({"hosts": ["user@a"], "options": {"Port": "2222"}}))
    command = transport.command(Host(name="user@a"), ("env", "A=b c", "python", "-m", "guard"))
    assert command == (*GOLDEN.split(), "env 'A=b c' python -m guard")
    assert shlex.split(command[-1]) == ["env", "A=b c", "python", "-m", "guard"]


def test_no_option_undoes_what_ends_a_guard() -> None:
    options = {"ControlMaster": "auto", "ServerAliveInterval": "30"}
    command = Ssh(SshSpec.model_validate({"hosts": ["a"], "options": options})).command(Host(name="a"), ("true",))
    assert {"ControlMaster=no", "ServerAliveInterval=30"} < set(command) and "ControlMaster=auto" not in command


def test_hosts_are_names_or_have_an_address_for_their_peers() -> None:
    spec = SshSpec.model_validate({"hosts": ["a", {"host": "b", "address": "10.0.0.2"}]})
    assert Ssh(spec).hosts(1) == (Host(name="a"), Host(name="b", address="10.0.0.2"))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"launcher": "ssh"}, "launcher ssh needs its hosts"),
        ({"launcher": "ssh", "nodes": 3, "ssh": {"hosts": ["a", "b"]}}, "3 nodes need as many hosts; .* names 2"),
        ({"launcher": "ssh", "ssh": {"hosts": []}}, "at least 1 item"),
        ({"launcher": "ssh", "ssh": {"hosts": ["a", "b", "a"]}}, "named twice: a"),
        ({"launcher": "ssh", "ssh": {"hosts": ["-oProxyCommand=evil", "b"]}}, "pattern|not the name of a host"),
        ({"launcher": "ssh", "ssh": {"hosts": ["-a", "b"]}}, "not the name of a host: -a"),
        ({"launcher": "ssh", "ssh": {"hosts": ["a", {"host": "b", "adress": "c"}]}}, "adress"),
        ({"launcher": "rsh"}, "launcher"),
        ({"nodes": 2, "min_nodes": 3}, r"min_nodes \(3\) is more than nodes \(2\)"),
    ],
)
def test_what_cannot_be_launched_is_refused_by_name(launch: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LaunchSpec.model_validate(launch)
