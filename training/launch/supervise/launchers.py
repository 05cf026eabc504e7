"""Which launcher a pipeline file means, and which scheduler holds its runs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.launcher import Launcher
from headway.training.launch.base.protocol import JOB, PODS
from headway.training.launch.hosts.owned import OwnedLauncher
from headway.training.launch.hosts.probe import LocalTransport
from headway.training.launch.hosts.ssh import Ssh
from headway.training.launch.jobs.scheduler import Scheduler
from headway.training.launch.kubernetes.manifests import spec_of
from headway.training.launch.kubernetes.pods import Pods
from headway.training.launch.kubernetes.scheduler import Kubernetes
from headway.training.launch.slurm.job_array import SlurmArrays
from headway.training.launch.slurm.scheduler import has_capacity_beside
from headway.training.launch.slurm.srun import Srun


def launcher_for(spec: LaunchSpec) -> Launcher:
    """Of a detached run: in its job, where the supervisor is."""
    if spec.launcher == "slurm":
        return OwnedLauncher(spec, Srun(), partial(has_capacity_beside, spec))
    if spec.launcher == "kubernetes":
        return OwnedLauncher(spec, Pods(Path(os.environ[PODS]), os.environ[JOB], spec_of(spec).gather_s))
    return OwnedLauncher(spec, LocalTransport() if spec.ssh is None or spec.launcher == "local" else Ssh(spec.ssh))


def scheduler_for(spec: LaunchSpec) -> Scheduler:
    """Of a detached run.

    Raises:
        EnvironmentProblem: it cannot be asked from here.
    """
    return Kubernetes(spec) if spec.launcher == "kubernetes" else SlurmArrays()
