"""Agents that import no torch, for what guards, supervisors and schedulers do whoever the agent is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from headway.training.launch.hosts import owned
from headway.training.launch.hosts.probe import HEADWAY_HOME
from headway.training.launch.slurm import batch_script
from tests.training.launch.toys.toy_agent import toy_argv

TOY_PATH = os.pathsep.join((str(Path(__file__).parent / "toy_agents"), HEADWAY_HOME))
"""Where a supervisor in a job finds them before all else."""


def start_toy_agents(change: Callable[[object, str, object], object] = setattr) -> None:
    """What this process supervises, or queues in Slurm, has toys for agents from now on."""
    change(owned, "agent_argv", toy_argv)
    change(batch_script, "HEADWAY_HOME", TOY_PATH)
