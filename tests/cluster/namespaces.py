"""Hosts made of namespaces: each has a network address, processes and a name of its own, and a real sshd.

    switch ──┬── eth0 of host 1, 10.77.0.1: processes no other host sees
             └── eth0 of host 2, 10.77.0.2, …

The switch is in a namespace too: this machine's own network is left as it is, and no address of it can be in the way.
A host dies with its init, and all hosts die with this process; a reaper then removes their networks. Names carry this
process's number, so that what is left where the reaper was killed too can be told from what another needs.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.training.launch.base.process_tree import die_with_parent
from headway.training.launch.node.reaper import reaped
from tests.cluster.prerequisites import SYSTEM_PATH
from tests.waiting import wait_until

NETNS = Path("/run/netns")
NAMES = re.compile(r"^hw(?P<pid>\d+)-\d+$")
TBF = ("burst", "32kb", "latency", "400ms")
FOLDERS = "headway-hosts-"
"""Of their keys and settings."""
TOKEN = "TEST_HOSTS"
"""In the environment of every host's init."""
INIT = """
mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv.conf" /etc/resolv.conf && hostname "$2" || exit 1
exec /usr/sbin/sshd -D -e -f "$1/$2.conf"
"""


def ip(*words: str, check: bool = True) -> str:
    return _message("ip", *words, check=check)


def _message(*words: str, check: bool = True) -> str:
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    return subprocess.run(words, check=check, capture_output=True, text=True, env=environment).stdout


@dataclass
class NamespaceHost:
    name: str
    address: str
    folder: Path
    port: tuple[str, str]
    """The cable's other end: the switch's namespace, and its name there."""
    process: subprocess.Popen[bytes] | None = None
    """`unshare`, whose child is the host's init."""

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("nsenter", f"--net={NETNS / self.name}"),
                    *("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", INIT, "init", str(self.folder), self.name),
                ],
                env={**os.environ, TOKEN: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        wait_until(self._listens, what=f"sshd of {self.name}")

    def _listens(self) -> bool:
        return f"{self.address}:22" in self._in_network("ss", "-Hltn")

    def stop(self) -> None:
        """Its power is cut: all its processes are gone at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @property
    def init_pid(self) -> int:
        """As seen from here."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(wait_until(lambda: children.read_text().split())[0])

    def enter(self) -> tuple[str, ...]:
        """What runs the command that follows on this host."""
        return ("nsenter", f"--target={self.init_pid}", "--net", "--pid", "--mount", "--uts")

    def runs(self, module: str, *words: str) -> tuple[str, ...]:
        """What runs a module of Python's on this host; by `Program`, one that is imported already."""
        return (sys.executable, "-m", "tests.cluster.on_host", str(self.init_pid), module, *words)

    def signal(self, pid: int, number: signal.Signals) -> None:
        """To a process by the host's own count."""
        subprocess.run([*self.enter(), "sh", "-c", f"kill -{number.value} {pid}"], check=True)

    def cut(self) -> None:
        self._set_port("down")

    def mend(self) -> None:
        self._set_port("up")

    def _set_port(self, state: str) -> None:
        switch, port = self.port
        ip("-n", switch, "link", "set", port, state)

    @contextlib.contextmanager
    def slow(self, rate: str) -> Iterator[None]:
        """What it sends goes no faster.

        Args:
            rate: as tc(8) has it, such as `20mbit`.
        """
        self._in_network("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, *TBF)
        try:
            yield
        finally:
            self._in_network("tc", "qdisc", "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def lossy(self, percent: int) -> Iterator[None]:
        """So many of the packets that come to it are lost; see `num_lost`."""
        rule = f"numgen random mod 100 < {percent} counter drop"
        chain = f"chain in {{ type filter hook input priority 0; policy accept; iifname eth0 {rule}; }};"
        self._in_network("nft", f"table inet loss {{ {chain} }}")
        try:
            yield
        finally:
            self._in_network("nft", "delete", "table", "inet", "loss")

    def num_lost(self) -> int:
        """Packets, since the link is lossy."""
        (lost,) = re.findall(r"counter packets (\d+)", self._in_network("nft", "list", "table", "inet", "loss"))
        return int(lost)

    def _in_network(self, *words: str) -> str:
        return _message("nsenter", f"--net={NETNS / self.name}", *words)


@dataclass
class NamespaceHosts:
    """As many hosts as asked for."""

    folder: Path
    hosts: list[NamespaceHost] = field(default_factory=list)

    @property
    def options(self) -> Mapping[str, str]:
        """Of the ssh client."""
        return {
            "User": "root",
            "IdentityFile": str(self.folder / "id"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
        }


@contextlib.contextmanager
def namespace_hosts(count: int) -> Iterator[NamespaceHosts]:
    """Make them, and leave nothing of them behind."""
    sweep_stale()
    folder = tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-")
    switch, *names = (f"hw{os.getpid()}-{number}" for number in range(count + 1))
    # The reaper has the path of whoever started the tests, which may lack `/sbin`.
    program = shutil.which("ip", path=SYSTEM_PATH) or "ip"
    left = [(program, "netns", "delete", name) for name in (switch, *names)]
    left.append(("rm", "--recursive", "--force", folder.name))
    with (
        folder,
        reaped(TOKEN, folder.name, 0.0, sweep_remote=left),
        _hosts_in(Path(folder.name), switch, names) as made,
    ):
        yield made


@contextlib.contextmanager
def _hosts_in(folder: Path, switch: str, names: Sequence[str]) -> Iterator[NamespaceHosts]:
    made = NamespaceHosts(folder)
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        _make_keys(folder)
        for number, name in enumerate(names, start=1):
            made.hosts.append(NamespaceHost(name, f"10.77.0.{number}", folder, (switch, f"port{number}")))
        _write_settings(folder, made.hosts)
        for host in made.hosts:
            ip("netns", "add", host.name)
            _, port = host.port
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "lo", "up")
            ip("-n", host.name, "link", "set", "eth0", "up")
            host.start()
        yield made
    finally:
        for host in made.hosts:
            host.stop()
            ip("netns", "delete", host.name, check=False)
        ip("netns", "delete", switch, check=False)


def sweep_stale() -> None:
    """Remove what processes left that were killed; their hosts' processes died with them."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        if _is_stale(path.name.removeprefix(FOLDERS).partition("-")[0]):
            shutil.rmtree(path, ignore_errors=True)
    for path in NETNS.glob("hw*"):
        if (match := NAMES.match(path.name)) and _is_stale(match["pid"]):
            ip("netns", "delete", path.name, check=False)


def _is_stale(pid: str) -> bool:
    """Whether what bears the number is left of a process that ended; this one has made nothing yet."""
    return pid == str(os.getpid()) or not Path(f"/proc/{pid}").exists()


def _make_keys(folder: Path) -> None:
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("id", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "id.pub").rename(folder / "authorized_keys")


def _write_settings(folder: Path, hosts: Sequence[NamespaceHost]) -> None:
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text("".join(f"{host.address} {key}\n" for host in hosts))
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in hosts))
    # A resolver that does not answer costs every process group ten seconds.
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for host in hosts:
        settings = {
            "ListenAddress": host.address,
            "HostKey": folder / "host_key",
            "AuthorizedKeysFile": folder / "authorized_keys",
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "MaxStartups": "100",
            # Away from what the shell of whoever runs the tests does at every start.
            "SetEnv": f"HOME={folder}",
        }
        (folder / f"{host.name}.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
