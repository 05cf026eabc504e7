"""What processors and their memory drew, by RAPL, where the kernel lets this user read it (root alone, as a rule).

Counters of RAPL begin again within an hour under load, which to a reader looks like a machine that was started anew. So
they are added up from look to look, and count from the exporter's start.

Source: Documentation/power/powercap/powercap.rst of the Linux kernel.
"""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path

from headway.flows.monitoring.samples import Samples

POWERCAP = Path("/sys/class/powercap")
MICROJOULES = 1e6
ZONE = re.compile(r"intel-rapl:\d+(:\d+)?", re.ASCII)
"""AMD's have the same name. Cores and graphics are part of their package; `psys` is the whole machine."""
COUNTED = re.compile(r"package-\d+(-die-\d+)?|dram", re.ASCII)
"""A package of several dies has a counter for each."""


class PackageEnergy:
    """Adds up between looks; two of them at one moment are the caller's to prevent."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._last_uj: dict[str, int] = {}
        self._drawn_uj: dict[str, int] = {}

    def fill(self, samples: Samples) -> None:
        """What cannot be read is left out."""
        node = socket.gethostname()
        for zone, joules in self.look().items():
            samples.value("train_node_energy_joules_total", joules, node=node, zone=zone)

    def look(self) -> dict[str, float]:
        """Joules since the first look, by zone such as `package-0` or `package-0 dram`."""
        found: dict[str, float] = {}
        for folder in sorted(self._powercap.glob("intel-rapl:*")):
            with contextlib.suppress(OSError, ValueError, ArithmeticError):
                if (zone := self._zone(folder)) is None:
                    continue
                now_uj = int((folder / "energy_uj").read_text())
                before_uj = self._last_uj.get(folder.name, now_uj)
                # Its counter begins again after the largest value that it can have.
                period_uj = int((folder / "max_energy_range_uj").read_text()) + 1
                # By folder: nothing says that two cannot have one name, and their counters are their own.
                self._drawn_uj[folder.name] = self._drawn_uj.get(folder.name, 0) + (now_uj - before_uj) % period_uj
                self._last_uj[folder.name] = now_uj
                found[zone] = found.get(zone, 0.0) + self._drawn_uj[folder.name] / MICROJOULES
        return found

    def _zone(self, folder: Path) -> str | None:
        if ZONE.fullmatch(folder.name) is None:
            return None
        name = (folder / "name").read_text().strip()
        if COUNTED.fullmatch(name) is None:
            return None
        package = folder.name.rpartition(":")[0]
        return name if package == "intel-rapl" else f"{(self._powercap / package / 'name').read_text().strip()} {name}"
