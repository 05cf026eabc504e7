"""The hardware and versions that a measurement was made on. Imports no torch: each retrain compares them."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

from headway.data_contracts.store.documents import Frozen
from headway.training.frozen.code_archive import environment_here
from headway.training.launch.base.host_facts import gpu_names
from headway.training.launch.supervise.room import usable_processors, visible_gpus

GIB = 1 << 30


class Machine(Frozen):
    host: str
    """For people: another host of the same kind may take what was measured here."""
    processor: str
    num_cores: int
    """That this process may use, whole ones."""
    memory_gib: int
    num_gpus: int
    gpu: str
    """The names of those in the machine, each once; empty: none."""
    versions: dict[str, str]

    def differences(self, other: Machine) -> list[str]:
        """What would have to be equal, and is not: `name here, there`."""
        names = ("processor", "num_cores", "memory_gib", "num_gpus", "gpu")
        found = [
            f"{name.replace('num_', '')} {getattr(self, name) or 'none'}, there {getattr(other, name) or 'none'}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]
        return found + [
            f"{name} {self.versions.get(name, 'none')}, there {other.versions.get(name, 'none')}"
            for name in sorted({*self.versions, *other.versions})
            if self.versions.get(name) != other.versions.get(name)
        ]


def machine_here() -> Machine:
    num_gpus = len(visible_gpus())
    return Machine(
        host=socket.gethostname(),
        processor=f"{platform.machine()} {_processor()}".strip(),
        num_cores=max(1, int(usable_processors())),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB),
        num_gpus=num_gpus,
        gpu=", ".join(gpu_names()) if num_gpus else "",
        versions=environment_here(),
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
