"""Hosts with slow links between them: network namespaces on one bridge, each with a token bucket on what it sends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LINK = "eth0"


class Host(NamedTuple):
    prefix: tuple[str, ...]
    """What runs a command there."""
    address: str


def why_no_slow_hosts() -> str:
    """Empty if there can be some."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"no {' and no '.join(missing)}"
    if os.geteuid() != 0:
        return "not root"
    tried = _call("ip", "netns", "add", _namespace(0), check=False)
    if tried.returncode:
        return tried.stderr.strip()
    _call("ip", "netns", "delete", _namespace(0))
    return ""


@contextlib.contextmanager
def slow_hosts(count: int, rate: str) -> Iterator[list[Host]]:
    """Args:
    rate: what each host may send, as `tc` says it, such as `1gbit`.
    """
    names, switch = [_namespace(index) for index in range(count)], f"headway{os.getpid()}-switch"
    folders = [Path("/etc/netns") / name for name in names]
    try:
        _call("ip", "netns", "add", switch)
        _call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "bridge", "up")
        for index, (name, folder) in enumerate(zip(names, folders, strict=True)):
            _call("ip", "netns", "add", name)
            # Without a name server that answers, every rendezvous waits for one.
            folder.mkdir(parents=True)
            (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            hosts = "".join(f"{_address(other)} {each}\n" for other, each in enumerate(names))
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
            port = f"port{index}"
            _call("ip", "link", "add", LINK, "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
            _call("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _call("ip", "-n", name, "addr", "add", f"{_address(index)}/24", "dev", LINK)
            for each in ("lo", LINK):
                _call("ip", "-n", name, "link", "set", each, "up")
            shape = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            _call("tc", "-n", name, "qdisc", "add", "dev", LINK, *shape)
        yield [Host(("ip", "netns", "exec", name), _address(index)) for index, name in enumerate(names)]
    finally:
        for name in (*names, switch):
            _call("ip", "netns", "delete", name, check=False)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _namespace(index: int) -> str:
    return f"headway{os.getpid()}-{index}"


def _address(index: int) -> str:
    return f"10.78.0.{index + 1}"


def _call(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=check, capture_output=True, text=True)
