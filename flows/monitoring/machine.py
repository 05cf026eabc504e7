"""What the machine says that the exporter runs on: network, pressure, memory, disk. Linux; what lacks is left out."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil

from headway.flows.monitoring.samples import Samples

PRESSURE = Path("/proc/pressure")
VMSTAT = Path("/proc/vmstat")
MICROSECONDS = 1e6


def fill_machine(samples: Samples, workspace: Path) -> None:
    """Args:
    workspace: a folder of the disk whose free space counts.
    """
    node = socket.gethostname()
    for nic, counters in sorted(psutil.net_io_counters(pernic=True).items()):
        for direction, count in (("receive", counters.bytes_recv), ("transmit", counters.bytes_sent)):
            samples.value("train_node_network_bytes_total", count, node=node, nic=nic, direction=direction)
    for resource in ("cpu", "io", "memory"):
        for share, waited_s in pressure_s(PRESSURE / resource).items():
            samples.value("train_node_pressure_seconds_total", waited_s, node=node, resource=resource, share=share)
    samples.value("train_node_memory_available_bytes", psutil.virtual_memory().available, node=node)
    with contextlib.suppress(OSError, ValueError):
        counted = dict(line.split() for line in VMSTAT.read_text().splitlines())
        if "oom_kill" in counted:
            samples.value("train_node_oom_kills_total", int(counted["oom_kill"]), node=node)
    with contextlib.suppress(OSError):
        samples.value("headway_workspace_free_bytes", psutil.disk_usage(str(workspace)).free)


def pressure_s(path: Path) -> dict[str, float]:
    """How long `some` or `full` processes waited since the machine's start, in seconds.

    Source: Documentation/accounting/psi.rst of the Linux kernel.
    """
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text().splitlines()]
        return {line[0]: int(line[-1].removeprefix("total=")) / MICROSECONDS for line in lines if line}
    return {}
