"""Which launcher a pipeline file means."""

from __future__ import annotations

from training.launch.hosts import Here
from training.launch.launcher import Launcher
from training.launch.owned import OwnedLauncher
from training.launch.spec import LaunchSpec
from training.launch.srun import Srun
from training.launch.ssh import Ssh


def launcher_for(spec: LaunchSpec) -> Launcher:
    """Of `slurm`: in the job, whose batch step the supervisor is."""
    if spec.launcher == "slurm":
        return OwnedLauncher(spec, Srun())
    return OwnedLauncher(spec, Here() if spec.ssh is None or spec.launcher == "local" else Ssh(spec.ssh))
