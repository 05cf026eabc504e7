"""Which launcher a pipeline file means."""

from __future__ import annotations

from training.launch.hosts import Here
from training.launch.launcher import Launcher
from training.launch.owned import OwnedLauncher
from training.launch.spec import LaunchSpec


def launcher_for(spec: LaunchSpec) -> Launcher:
    return OwnedLauncher(spec, Here())
