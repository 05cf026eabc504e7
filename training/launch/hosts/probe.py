"""Hosts, and how a process is started on one: the seam between the launcher and ssh, Slurm, Kubernetes or this machine.

A *transport* names the hosts and says which command started here runs another there, with its stdin, stdout and exit
status carried through. The end of that command, or of the link, ends the other's stdin: the lifeline of a guard.
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from headway.training.launch.base.host_facts import HostFacts, collect_host_facts
from headway.training.launch.base.host_probe import Host, HostProbe, Member
from headway.training.launch.base.ports import LOOPBACK, free_port
from headway.training.launch.base.process_tree import HEADWAY_HOME
from headway.training.launch.base.record import read_record

"""Guards run the supervisor's own version of Headway; ranks run their frozen code."""
MAX_PROBLEM_CHARS = 1000
"""Of what a host says that it lacks: it stands in messages and in the ledger."""
T = TypeVar("T")
_SIOCGIFADDR = 0x8915
"""netdevice(7)."""


class Transport(Protocol):
    """How processes come to hosts."""

    @property
    def name(self) -> str:
        """What the pipeline file calls it."""

    @property
    def is_local(self) -> bool:
        """Whether all hosts are this machine: then a guard is this process's child, and sees its end."""

    @property
    def has_environment(self) -> bool:
        """Whether the hosts have the owner's environment without its being carried there."""

    @property
    def python(self) -> str:
        """The interpreter on the hosts."""

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        """Whether it need not be waited for hosts that are still to come; asked again and again before an attempt."""

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        """All that may take a node of a gang of so many, best first."""

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        """What to start here so that `argv` runs there."""


class LocalTransport:
    """This machine, as many times as there are nodes: each is started as it would be elsewhere."""

    name = "local"
    is_local = True
    has_environment = False
    python = sys.executable

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        return True

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return (Host(name=socket.gethostname(), address=LOOPBACK),) * nodes

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)


def module_command(transport: Transport, host: Host, module: str, *arguments: str, **environment: str) -> list[str]:
    """What to start here so that a module of Headway runs on the host. Its words are visible there to everybody."""
    given = {"PYTHONPATH": HEADWAY_HOME, "PYTHONSAFEPATH": "1"} | environment
    words = (f"{name}={value}" for name, value in given.items())
    return list(transport.command(host, ("env", *words, transport.python, "-P", "-m", module, *arguments)))


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandResult:
    """What came back of one host."""

    stdout: str = ""
    problem: str = ""
    """Empty when the command ended well; else in the transport's words."""

    def read(self, kind: type[T]) -> T | str:
        """What the module said of this kind, or why it said nothing."""
        if self.problem:
            return self.problem[:MAX_PROBLEM_CHARS]
        try:
            # Only the last line: a login shell or a site's profile may print before it.
            found = json.loads(self.stdout.splitlines()[-1])
            problem = found.get("problem") if isinstance(found, dict) else None
            return problem[:MAX_PROBLEM_CHARS] if isinstance(problem, str) else read_record(kind, found)
        except (ValueError, IndexError, RecursionError):
            return "it gave no answer that can be understood"


def run_on_all(
    transport: Transport, hosts: Sequence[Host], module: str, arguments: Mapping[Host, Sequence[str]], within_s: float
) -> dict[Host, CommandResult]:
    """Run a module on every host at once, and wait for all; who does not answer in time is let go."""
    deadline_s = time.monotonic() + within_s
    started: list[tuple[Host, subprocess.Popen[str]]] = []
    answers: dict[Host, CommandResult] = {}
    # Started on all before any is read: the whole takes as long as the slowest host, not as their sum.
    try:
        for host in hosts:
            command = module_command(transport, host, module, *arguments[host])
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            started.append((host, process))
        for host, process in started:
            try:
                # Who has answered is read, however long another took.
                least_s = 0.0 if process.poll() is None else 1.0
                out, err = process.communicate(timeout=max(least_s, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                answers[host] = CommandResult(problem=f"no answer within {within_s:g} s")
                continue
            message = [line for line in err.splitlines() if line.strip()]
            status = f"exit status {process.returncode}"
            answers[host] = CommandResult(
                stdout=out, problem="" if process.returncode == 0 else (message or [status])[-1]
            )
    finally:
        for _, process in started:
            if process.poll() is None:
                process.kill()
            # Reads what is left and reaps; otherwise each slow host would leave a zombie and two open pipes.
            process.communicate()
    return answers


def probe_hosts(
    transport: Transport, nodes: int, folder: Path, within_s: float, without: Collection[str] = ()
) -> HostProbe:
    """The first so many hosts that answer, and see the folder.

    Args:
        within_s: how long a host may take.
        without: machines that are not asked.
    """
    # On this machine alone all nodes stand on one host, which cannot be excluded.
    hosts = [host for host in transport.hosts(nodes) if transport.is_local or host.machine not in without]
    if transport.is_local:
        # All local nodes meet at one address, so a single port is drawn and shared.
        port, request_unix_s = free_port(), time.time()
        here = [Member(name=host.name, address=host.address, interface="lo", port=port) for host in hosts[:nodes]]
        return HostProbe(
            members=tuple(here),
            unreachable={},
            facts={here[0]: collect_host_facts(folder, "")},
            request_unix_s=request_unix_s,
            response_unix_s=time.time(),
        )
    request_unix_s = time.time()
    arguments = {host: (str(folder), host.address) for host in hosts}
    answers = run_on_all(transport, hosts, "headway.training.launch.hosts.probe", arguments, within_s)
    response_unix_s = time.time()
    members: list[Member] = []
    unreachable: dict[Host, str] = {}
    facts: dict[Host, HostFacts] = {}
    spare_hosts: list[Host] = []
    for host in hosts:
        found = answers[host].read(_ProbeAnswer)
        if isinstance(found, str):
            unreachable[host] = found
        elif len(members) < nodes:
            facts[host] = found.facts
            at = {"address": found.address, "interface": found.interface}
            members.append(Member(name=host.name, machine=host.machine, port=found.port, **at))
        else:
            spare_hosts.append(host)
    return HostProbe(
        members=tuple(members),
        unreachable=unreachable,
        spare_hosts=tuple(spare_hosts),
        facts=facts,
        request_unix_s=request_unix_s,
        response_unix_s=response_unix_s,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReachedAddress:
    """Where this machine stands in the network."""

    address: str
    interface: str
    port: int

    @classmethod
    def find(cls, address: str) -> Self:
        """Raises `OSError` where no interface holds the address."""
        found = _resolved(address or _reached_at())
        return cls(address=found, interface=_interface_of(found), port=free_port(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class _ProbeAnswer(_ReachedAddress):
    """What a host says that can take a node."""

    facts: HostFacts


def _reached_at() -> str:
    """The address by which sshd was reached; else what this machine's name stands for."""
    # `SSH_CONNECTION` names the address that the owner really reached; a host's own name may map to loopback.
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else socket.gethostname()


def _resolved(address: str) -> str:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address))
    return str(socket.getaddrinfo(address, None, family=socket.AF_INET)[0][4][0])


def _interface_of(address: str) -> str:
    names = [name for _, name in socket.if_nameindex()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):
                # Bytes 20 to 24 of `struct ifreq` hold the IPv4 address.
                if socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]) == address:
                    return name
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if ipaddress.IPv6Address(int(digits, 16)) == ipaddress.ip_address(address):
                return name
    raise OSError(f"none of its network interfaces ({', '.join(names)}) has the address {address}")


def main(folder: str, address: str) -> None:
    """What a host answers when it is asked whether it can take a node."""
    try:
        if not Path(folder).is_dir():
            raise OSError(f"it does not see {folder}: keep the workspace on a file system that all hosts share")
        standing = _ReachedAddress.find(address)
        facts = collect_host_facts(Path(folder), standing.address)
        answer = asdict(_ProbeAnswer(**asdict(standing), facts=facts))
    except OSError as error:
        answer = {"problem": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
