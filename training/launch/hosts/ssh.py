"""Hosts reached by ssh: what the pipeline file says of them, and the client's command.

The client is held by its stdin: when this process ends, or the client is killed, the guard at the other end reads the
end of its own. A link that is cut ends the client after some seconds, and the guard when the owner's beat stays out.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headway.training.config.launcher_specs import SshSpec
from headway.training.launch.base.host_probe import Host

ALIVE_EVERY_S, ALIVE_MISSES = 2, 3
"""Silence of the link for so long, so many times, ends the client."""


class Ssh:
    """The transport."""

    name = "ssh"
    is_local = False
    has_environment = False

    def __init__(self, spec: SshSpec) -> None:
        self._spec = spec
        self.python = spec.python

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        return True

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return tuple(Host(name=host.host, address=host.address) for host in self._spec.hosts)

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        # A user's options come after these defaults and override them; what ownership rests on comes after theirs.
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
        # `-T`: a terminal would merge stdout and stderr, and echo the order. `--`: a host name may begin with a dash.
        return ("ssh", "-T", *given, "--", host.name, shlex.join(argv))
