"""Which launcher a pipeline file means, and which scheduler holds its runs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from training.launch.hosts import Here
from training.launch.jobs import Scheduler
from training.launch.kubernetes_jobs import Kubernetes
from training.launch.launcher import Launcher
from training.launch.manifests import spec_of
from training.launch.owned import OwnedLauncher
from training.launch.pods import Pods
from training.launch.protocol import JOB, PODS
from training.launch.slurm import has_room_beside
from training.launch.slurm_array import SlurmArrays
from training.launch.spec import LaunchSpec
from training.launch.srun import Srun
from training.launch.ssh import Ssh


def launcher_for(spec: LaunchSpec) -> Launcher:
    """Of a detached run: in its job, where the supervisor is."""
    if spec.launcher == "slurm":
        return OwnedLauncher(spec, Srun(), partial(has_room_beside, spec))
    if spec.launcher == "kubernetes":
        return OwnedLauncher(spec, Pods(Path(os.environ[PODS]), os.environ[JOB], spec_of(spec).gather_s))
    return OwnedLauncher(spec, Here() if spec.ssh is None or spec.launcher == "local" else Ssh(spec.ssh))


def scheduler_for(spec: LaunchSpec) -> Scheduler:
    """Of a detached run.

    Raises:
        EnvironmentProblem: it cannot be asked from here.
    """
    return Kubernetes(spec) if spec.launcher == "kubernetes" else SlurmArrays()
