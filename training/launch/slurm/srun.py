"""Transport `slurm`: the nodes of the job that this process runs in, reached by steps of that job.

A step's client is here; its end, or the job's, ends the guard's stdin. Sources: srun(1), scontrol(1).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from headway.training.launch.base.host_probe import Host
from headway.training.launch.slurm.commands import run_command


class Srun:
    name = "slurm"
    is_local = False
    has_environment = False
    python = sys.executable

    def __init__(self) -> None:
        self._hosts: tuple[Host, ...] = ()

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        return True

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        """All nodes of the job, by the addresses that Slurm has for them."""
        # Asked once: the nodes of a job do not change while it runs, and each question is one more for the controller.
        if not self._hosts:
            shown = run_command("scontrol", "--oneliner", "show", "node", os.environ["SLURM_JOB_NODELIST"])
            self._hosts = tuple(parse_hosts(shown))
        return self._hosts

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        return (
            "srun",
            f"--nodelist={host.name}",
            *("--nodes=1", "--ntasks=1"),
            # All that the job has there, beside whichever step is there already.
            *("--overlap", "--mem=0", "--cpu-bind=none"),
            *("--export=ALL", "--unbuffered", "--quiet"),
            *argv,
        )


def parse_hosts(shown: str) -> list[Host]:
    """Of `scontrol --oneliner show node`, in its order."""
    found = re.findall(r"^NodeName=(\S+)\s.*?\bNodeAddr=(\S+)", shown, flags=re.MULTILINE)
    return [Host(name=name, address=address) for name, address in found]
