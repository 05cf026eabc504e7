"""Hosts that may take a node of an attempt, and which of them answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.training.launch.base.host_facts import HostFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """What may take a node: a machine, or a pod on one."""

    name: str
    """As the transport calls it."""
    address: str = ""
    """Where its peers reach it; empty: where the transport did."""
    machine: str = ""
    """By which it is left out, for pods come and go; the host's own name where nothing else is said."""

    def __post_init__(self) -> None:
        # Pods have new names at each attempt, so a slow machine could never be excluded by them.
        object.__setattr__(self, "machine", self.machine or self.name)

    def __str__(self) -> str:
        """For people, who look after machines."""
        return self.name if self.machine == self.name else f"pod {self.name} on {self.machine}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member(Host):
    """A host that answered: where one node of an attempt stands, by the address that its peers use."""

    interface: str
    """The network interface that holds the address."""
    port: int
    """Free there, for a server that peers on other hosts are told of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostProbe:
    """Who answered, in the order of the host list, and why others did not."""

    members: tuple[Member, ...]
    unreachable: Mapping[Host, str]
    spare_hosts: tuple[Host, ...] = ()
    """Hosts that could take a node as well."""
    facts: Mapping[Host, HostFacts] = field(default_factory=dict)
    """What each member said of itself."""
    request_unix_s: float = 0.0
    response_unix_s: float = 0.0

    def describe_unreachable(self) -> str:
        return "; ".join(f"{host}: {why}" for host, why in self.unreachable.items())
