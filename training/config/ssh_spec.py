"""The part `launch.ssh` of a pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from headway.data_contracts.store.documents import Frozen

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
