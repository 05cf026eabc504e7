"""What the tests of clusters need of a machine: each is looked for, and what is missed is said with what to do."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PROGRAMS_OF_HOSTS = ("ip", "tc", "nft", "ss", "nsenter", "unshare", "sshd", "ssh", "ssh-keygen")
PROGRAMS_OF_SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
PROGRAMS_OF_MONITORING = ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "prometheus-pushgateway")
FRESH_NAMESPACES = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
HOSTS = "ip link add bridge type bridge && ip link add here type veth peer name there && hostname probe"
SLOW_LINKS = "tc qdisc add dev lo root tbf rate 20mbit burst 32kb latency 400ms"
LOSSY_LINKS = "nft 'table inet loss { chain in { type filter hook input priority 0; numgen random mod 9 < 1 drop; }; }'"


def why_no_hosts(probe: str = HOSTS) -> str:
    """Why no hosts can be made of namespaces here; empty where they can.

    Args:
        probe: what the kernel has to do for root of fresh namespaces, as the shell has it.
    """
    return _not_root() or _not_installed(PROGRAMS_OF_HOSTS) or _not_done(probe)


def why_no_slurm() -> str:
    """Why there can be no Slurm of the tests' own here; empty where there can."""
    return _not_root() or _not_installed(PROGRAMS_OF_SLURM)


def why_no_monitoring() -> str:
    """Why there can be no Prometheus and Alertmanager of the tests' own here; empty where there can."""
    return _not_installed(PROGRAMS_OF_MONITORING)


def _not_root() -> str:
    return "" if os.geteuid() == 0 else "only root can do this: run `make test-cluster` as root"


def _not_installed(programs: tuple[str, ...]) -> str:
    missing = ", ".join(name for name in programs if shutil.which(name, path=SYSTEM_PATH) is None)
    return f"not installed: {missing}; as root, tests/cluster/install.sh installs it" if missing else ""


@functools.cache
def _not_done(probe: str) -> str:
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    done = subprocess.run([*FRESH_NAMESPACES, "sh", "-c", probe], capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return ""
    message = " ".join(done.stderr.split())
    return (
        f"this kernel, or container, lets root have no such hosts ({message}): use a virtual machine, or --privileged"
    )
