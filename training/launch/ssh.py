"""Hosts reached by ssh: what the pipeline file says of them, and the client's command.

The client is held by its stdin: when this process ends, or the client is killed, the guard at the other end reads the
end of its own. A link that is cut ends the client after some seconds, and the guard when the owner's beat stays out.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from data_contracts.documents import Frozen
from training.launch.hosts import Host

_NAME = r"^[A-Za-z0-9_.@:\[\]%-]*$"
ALIVE_EVERY_S, ALIVE_MISSES = 2, 3
"""Silence of the link for so long, so many times, ends the client."""


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

    hosts: tuple[Annotated[SshHost, BeforeValidator(_named)], ...] = Field(
        min_length=1, description="Hosts that may take a node, best first; more than `nodes` stand by for lost ones."
    )
    python: str = Field(
        sys.executable, min_length=1, description="The interpreter on the hosts; without it, the launching one's path."
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


class Ssh:
    """The transport."""

    name = "ssh"
    is_here = False
    has_environment = False

    def __init__(self, spec: SshSpec) -> None:
        self._spec = spec
        self.python = spec.python

    def is_gathered(self, nodes: int, fewest: int) -> bool:
        return True

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return tuple(Host(name=host.host, address=host.address) for host in self._spec.hosts)

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        options = {
            "ConnectTimeout": str(self._spec.connect_timeout_s),
            "ServerAliveInterval": str(ALIVE_EVERY_S),
            "ServerAliveCountMax": str(ALIVE_MISSES),
            "LogLevel": "ERROR",
            **self._spec.options,
            # Nobody is there to be asked.
            "BatchMode": "yes",
            # A shared connection would outlive the client that is killed to end a guard.
            "ControlMaster": "no",
            "ControlPath": "none",
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ("ssh", "-T", *given, "--", host.name, shlex.join(argv))
