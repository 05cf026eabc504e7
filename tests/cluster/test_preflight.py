"""What is wrong on one of two hosts is said before any rank is started, within seconds, and all of it at once."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headway.training.launch.hosts.links import PATIENCE_S
from tests.cluster.conftest import OwnedRun, ssh_spec
from tests.cluster.namespaces import NamespaceHost, NamespaceHosts
from tests.cluster.prerequisites import SYSTEM_PATH

LOOKS, TIMES_SOUND = 2, 4.0
"""A broken link is looked at twice. A look ends when a host's patience with its neighbour does, and with so many times
what sound hosts take here, where others may keep the processors busy."""
TAKER = """
import socket, sys
held = [socket.create_server((sys.argv[1], port)) for port in range(10_000, 10_104)]
print("taken", flush=True)
sys.stdin.read()
"""
SECRETS = ("NOT_THERE", "NOR_THERE")
AHEAD = "import time; time.time = lambda clock=time: clock.clock_gettime(0) + 60"
FORGETFUL = "import os; os.open = lambda path, flags, *mode, real=os.open: real(path, flags & ~os.O_EXCL, *mode)"
"""What Python does at its start on that host: its clock is fast, or its files are those of a careless file system."""


class Place(NamedTuple):
    """Where a fault is planted."""

    host: NamespaceHost
    peer: NamespaceHost
    run_dir: Path
    tmp_path: Path

    def sh(self, script: str, *words: object) -> None:
        """On the host."""
        command = [*self.host.enter(), "sh", "-ec", script, "sh", *map(str, words)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": SYSTEM_PATH})

    @contextlib.contextmanager
    def mounted(self, script: str, target: Path, *words: object) -> Iterator[None]:
        """Something over a file or folder, as this host alone sees it."""
        self.sh(script, target, *words)
        try:
            yield
        finally:
            self.sh('umount "$1"', target)

    def over(self, target: Path, text: str) -> contextlib.AbstractContextManager[None]:
        mine = self.tmp_path / f"over-{target.name}"
        mine.write_text(text)
        return self.mounted('mount --bind "$2" "$1"', target, mine)


Fault = contextlib.AbstractContextManager[object]


def another_version(place: Place) -> Fault:
    found = metadata.distribution("torch")
    file = Path(str(found.locate_file(next(f for f in found.files or () if f.name == "METADATA"))))
    return place.over(file, file.read_text().replace(f"Version: {found.version}\n", "Version: 1.13.1\n"))


def python_does(place: Place, statement: str) -> Fault:
    """At every start: by a file of the environment that is there for such things."""
    site = Path(str(metadata.distribution("pytest").locate_file("")))
    return place.over(next(iter(sorted(site.glob("*.pth")))), f"{statement}\n")


@contextlib.contextmanager
def dead_resolver(place: Place) -> Iterator[None]:
    nobody = place.host.address.rpartition(".")[0] + ".253"
    with (
        place.over(Path("/etc/resolv.conf"), f"nameserver {nobody}\noptions timeout:9 attempts:1\n"),
        place.over(Path("/etc/hosts"), "127.0.0.1 localhost\n"),
    ):
        yield


@contextlib.contextmanager
def slow_answers(place: Place) -> Iterator[None]:
    """Small packets to where the other host listens wait for their turn; what fills a packet does not."""
    slow = f'ip daddr {place.peer.address} tcp dport 10000-32767 meta length < 100 meta priority set "1:3"'
    rules = f"table inet slow {{ chain out {{ type filter hook output priority 0; {slow}; }}; }}"
    place.sh(
        "tc qdisc add dev eth0 root handle 1: htb default 1;"
        "tc class add dev eth0 parent 1: classid 1:1 htb rate 10gbit;"
        "tc class add dev eth0 parent 1: classid 1:3 htb rate 3kbit burst 1b cburst 1b;"
        'nft "$1"',
        rules,
    )
    try:
        yield
    finally:
        place.sh("nft delete table inet slow; tc qdisc del dev eth0 root")


@contextlib.contextmanager
def closed_ports(place: Place) -> Iterator[None]:
    rule = f"ip saddr {place.peer.address} tcp flags syn reject with tcp reset"
    place.sh('nft "$1"', f"table inet closed {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}")
    try:
        yield
    finally:
        place.sh("nft delete table inet closed")


@contextlib.contextmanager
def no_port(place: Place) -> Iterator[None]:
    """All that may be given away are taken."""
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    place.sh('cat "$1" > "$2"; echo 10102 10103 > "$1"', limits, place.tmp_path / "before")
    with subprocess.Popen(
        [*place.host.enter(), sys.executable, "-c", TAKER, place.host.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield
        finally:
            place.sh('cat "$2" > "$1"', limits, place.tmp_path / "before")
            process.communicate()


def gpus_of_its_own(place: Place) -> Fault:
    programs = Path("/usr/local/bin")
    if Path(sys.executable).resolve().is_relative_to(programs) or shutil.which("nvidia-smi"):
        pytest.skip("Python stands where the toy is to be, or there are GPUs")
    tool = place.tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 0'\n")
    tool.chmod(0o755)
    return place.mounted('mount -t tmpfs tmpfs "$1"; cp "$2" "$1"', programs, tool)


FAULTS: dict[str, tuple[Callable[[Place], Fault], str]] = {
    "secrets": (lambda _: contextlib.nullcontext(), ""),
    "versions": (another_version, f"torch is 1.13.1 there and {metadata.version('torch')} where the run is launched"),
    "topology": (gpus_of_its_own, "{peer}: 0 GPUs for its 1 ranks, where {address} has 1"),
    "no port": (no_port, "no port of {address} can be had"),
    "ports closed": (closed_ports, "{peer} to {address}: [Errno 111] Connection refused"),
    "name service": (dead_resolver, "its name service takes over 2.0 s for its own name"),
    "clock": (lambda place: python_does(place, AHEAD), "{address}: its clock is "),
    "disk full": (
        lambda place: place.mounted('mount -t tmpfs -o size=4k tmpfs "$1"; yes >"$1/full" || true', place.run_dir),
        "the run's folder: it cannot be written as checkpoints are (No space left on device)",
    ),
    "disk small": (
        lambda place: place.mounted('mount -t tmpfs -o size=1m tmpfs "$1"', place.run_dir),
        "0.0 GB are free for checkpoints, not 0.1",
    ),
    "disk read-only": (
        lambda place: place.mounted('mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"', place.run_dir),
        "the run's folder: it cannot be written as checkpoints are (Read-only file system)",
    ),
    "storage not atomic": (
        lambda place: python_does(place, FORGETFUL),
        "the run's folder: it creates a file exclusively that is there already",
    ),
    "bandwidth": (lambda place: place.host.slow("4mbit"), "{address} to {peer}: 0."),
    "latency": (slow_answers, "{address} to {peer}: * ms, over 100"),
}
"""What is planted, and what is said of it; `*` stands for a figure."""


@pytest.fixture(scope="module")
def sound_s(hosts: NamespaceHosts, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What the longer look at hosts without a fault takes here, where others may keep the processors busy."""
    two = NamespaceHosts(hosts.folder, hosts.hosts[:3])
    run = OwnedRun(tmp_path_factory.mktemp("sound"), ssh_spec(two), hosts.hosts[0], agents="toys")
    try:
        run.begin("--steps", "1")
        assert run.ends() == 0, run.message
        return max(looks_of(run))
    finally:
        run.end()


def looks_of(run: OwnedRun) -> list[float]:
    """Seconds."""
    return [event["duration_s"] for event in (*run.events("attempt.muster"), *run.events("attempt.preflight"))]


AT_MUSTER = {"no port"}
"""A host that cannot take a node at all is not among those that are looked at, and it may be another time."""


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_on_one_of_two_hosts_is_refused_with_all_else_that_is_missing(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun], tmp_path: Path, sound_s: float, name: str
) -> None:
    plant, told = FAULTS[name]
    peer, host = hosts.hosts[1:3]
    asked: dict[str, Any] = {"environment": SECRETS, "min_free_bytes": 10**8}
    two = NamespaceHosts(hosts.folder, hosts.hosts[:3])
    run = new_run(ssh_spec(two, preflight=asked, max_attempts=1), hosts.hosts[0])
    with plant(Place(host, peer, run.folder, tmp_path)):
        run.begin("--steps", "3")
        status = run.ends()

    expected = told.format(address=host.address, peer=peer.address)
    pattern = r"[\d.]+".join(re.escape(part) for part in expected.split("*"))
    assert re.search(pattern, run.message) and host.address in (run.message if told else host.address), run.message
    if name in AT_MUSTER:
        assert "1 of at least 2 hosts can take a node" in run.message
    else:
        assert status == 8 and "no rank was started, since preflight found" in run.message
        assert all(f"{secret} is not set" in run.message for secret in SECRETS), "all that is missing is said at once"
    assert not run.files.read_markers() and not list(run.files.folder.glob("node-*")), "no rank was started, no guard"
    assert max(looks_of(run)) <= LOOKS * (PATIENCE_S + TIMES_SOUND * sound_s)
