"""A real Slurm on this machine: one controller, several nodes, munge, all in one folder and under one token."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import processes_with, send_signal, sweep
from headway.training.launch.node.reaper import reaped
from tests.cluster.prerequisites import SYSTEM_PATH
from tests.waiting import wait_until

TOKEN = "TEST_SLURM_CLUSTER"
"""In the environment of the daemons, and of every step they start."""
NODES = ("n1", "n2", "n3")
NODE_DEAD_S = 10
"""How long the controller waits for a silent node."""

CONFIGURATION = """\
ClusterName=headway-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits as long as a credential lives, two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout={dead_s}
KillWait=5
MinJobAge=300
JobRequeue=1
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class SlurmCluster:
    folder: Path
    nodes: dict[str, int] = field(default_factory=dict)
    """Ports by name."""
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """For whoever speaks to it."""
        return {**os.environ, **self.variables}

    @property
    def variables(self) -> dict[str, str]:
        return {TOKEN: str(self.folder), "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SYSTEM_PATH}

    def configure(self) -> None:
        self.nodes = {name: free_port() for name in NODES}
        host = socket.gethostname()
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
            for name, port in self.nodes.items()
        ]
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                folder=self.folder,
                host=host,
                controller_port=free_port(),
                dead_s=NODE_DEAD_S,
                nodes="\n".join(lines),
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "state").mkdir()
        for name in NODES:
            (self.folder / f"spool-{name}").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def start(self) -> None:
        place = self.folder
        self._start(
            "munged",
            *("--force", "--foreground", f"--socket={place}/munge.socket", f"--key-file={place}/munge.key"),
            *(f"--pid-file={place}/munged.pid", f"--log-file={place}/munged.log", f"--seed-file={place}/munged.seed"),
        )
        wait_until((place / "munge.socket").exists, what="munged")
        self._start("slurmctld", "-D", "-c")
        for name in self.nodes:
            self.start_node(name)
        self.wait_for_nodes()

    def start_node(self, name: str) -> None:
        self._start("slurmd", "-D", "-c", "-N", name, as_name=name)

    def _start(self, program: str, *arguments: str, as_name: str = "") -> None:
        with (self.folder / f"{as_name or program}.out").open("ab") as out:
            daemon = subprocess.Popen(
                (program, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )
        self.pids[as_name or program] = daemon.pid
        self._daemons.append(daemon)

    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def wait_for_nodes(self) -> None:
        """Until every node can be given work."""
        wait_until(self._are_idle, what=f"idle nodes of {self.folder}")

    def _are_idle(self) -> bool:
        message = self.command("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()
        return len(message) == len(self.nodes) and set(message) == {"idle"}

    def command(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
        return done.stdout

    def kill_node(self, name: str) -> None:
        """As if the machine's own daemon had crashed; what it started lives on."""
        os.kill(self.pids[name], signal.SIGKILL)

    def job_ids(self, key: str) -> list[str]:
        """Of every job of that name that Slurm remembers, however it ended."""
        lines = [line.split() for line in self.command("scontrol", "--oneliner", "show", "job").splitlines()]
        return [words[0].removeprefix("JobId=") for words in lines if f"JobName={key}" in words]

    def cancel_all(self) -> None:
        """End all jobs, and what is left of them, so that the next test finds a cluster without work."""
        if left := self.command("squeue", "--noheader", "--format=%i").split():
            self.command("scancel", *left)
            wait_until(lambda: not self.command("squeue", "--noheader", "--format=%i").split(), what="no job")

    def stop(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
        sweep(TOKEN, str(self.folder), patience_s=30)
        kill_step_managers(self.folder)
        for daemon in self._daemons:
            daemon.wait()

    def living(self) -> list[int]:
        return processes_with(TOKEN, str(self.folder))


def step_managers(folder: Path) -> list[int]:
    """Slurm's own parents of steps: they overwrite their environment, and are known by the log they write."""
    found = []
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if name.read_text().strip() == "slurmstepd":
                files = [str(entry.readlink()) for entry in (name.parent / "fd").iterdir()]
                if any(file.startswith(f"{folder}/") for file in files):
                    found.append(int(name.parent.name))
    return found


def kill_step_managers(folder: Path) -> None:
    for pid in step_managers(folder):
        send_signal(pid, signal.SIGKILL)


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """Daemons and jobs end with the body; and with this process, should it be killed."""
    cluster = SlurmCluster(folder)
    cluster.configure()
    last = (sys.executable, "-m", "tests.cluster.slurm", str(folder))
    with reaped(TOKEN, str(folder), 0.0, sweep_remote=[last]):
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


if __name__ == "__main__":
    kill_step_managers(Path(sys.argv[1]))
