"""What the tests of clusters make of a machine is gone with the process that made it, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.hosts.probe import HEADWAY_HOME
from tests.cluster.namespaces import NETNS
from tests.cluster.namespaces import TOKEN as HOSTS_TOKEN
from tests.cluster.prerequisites import why_no_hosts, why_no_slurm
from tests.cluster.slurm import TOKEN as SLURM_TOKEN
from tests.cluster.slurm import step_managers
from tests.waiting import wait_until

ENDINGS = pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])

HOSTS = """
from tests.cluster.namespaces import namespace_hosts
with namespace_hosts(2) as made:
    print(made.folder, flush=True)
    signal.pause()
"""
SLURM = """
from tests.cluster.slurm import slurm_cluster
with slurm_cluster(Path(sys.argv[1])) as cluster:
    cluster.command("sbatch", "--nodes=2", "--output=/dev/null", "--wrap", "srun sleep 600")
    print("", flush=True)
    signal.pause()
"""


OF_EVERY_USER = ("sh", "mount", "hostname", "rm", "ssh-keygen", "ss", "nsenter", "unshare")
"""On any path; what is the administrator's, such as `ip`, a user's may lack."""


@contextmanager
def holder(program: str, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds what the program makes, once it has said that it does."""
    command = [sys.executable, "-c", f"import signal, sys\nfrom pathlib import Path\n{program}", *words]
    process = subprocess.Popen(
        command,
        cwd=HEADWAY_HOME,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@ENDINGS
def test_of_hosts_neither_process_nor_network_nor_file_is_left(ending: signal.Signals, tmp_path: Path) -> None:
    if reason := why_no_hosts():
        pytest.skip(reason)
    for name in OF_EVERY_USER:
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    with holder(HOSTS, PATH=str(tmp_path)) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())

        def left() -> list[object]:
            networks, folders = NETNS.glob(f"hw{process.pid}-*"), folder.parent.glob(folder.name)
            return [*processes_with(HOSTS_TOKEN, str(folder)), *networks, *folders]

        assert len(left()) >= 2 + 3 + 1, "inits, networks with the switch's, folder"
        process.send_signal(ending)
        wait_until(lambda: not left(), what="the end of all that was a host")


@ENDINGS
def test_of_slurm_no_daemon_and_no_step_is_left(ending: signal.Signals, tmp_path: Path) -> None:
    if reason := why_no_slurm():
        pytest.skip(reason)
    with holder(SLURM, str(tmp_path)) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def left() -> list[int]:
            return [*processes_with(SLURM_TOKEN, str(tmp_path)), *step_managers(tmp_path)]

        # Of a batch step and a step on each of two nodes; munged, slurmctld and three slurmd.
        wait_until(lambda: len(step_managers(tmp_path)) >= 3 and len(left()) >= 3 + 5, what="a job that runs")
        process.send_signal(ending)
        wait_until(lambda: not left(), what="the end of all that was Slurm's")
