"""Measuring: a command in its own process, several of them turn about, so that a noisy neighbour meets them all."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What one process used, and all that it started, waited for or left behind."""

    cpu_s: float
    """User plus system."""
    wall_s: float
    peak_rss_bytes: int
    output: str
    """What it wrote to stdout."""


WATCH = """
import ctypes, json, os, resource, signal, subprocess, sys, time
# What the command leaves behind becomes a child of this process, so that its seconds are counted too.
if sys.platform == "linux" and ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):
    sys.exit("the kernel gives no orphans")
started = time.perf_counter()
code = subprocess.call(sys.argv[2:])
wall_s = time.perf_counter() - started
signal.signal(signal.SIGALRM, lambda *_: sys.exit("what the command left behind does not end"))
signal.alarm(60)
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([code, wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss], file)
"""
"""A small process between: Linux counts the memory of the one that starts a command as the command's own."""


def measure(command: Sequence[str]) -> Usage:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed; what it said is shown.
    """
    with tempfile.NamedTemporaryFile(mode="r") as result:
        watched = [sys.executable, "-S", "-c", WATCH, result.name, *command]
        message = subprocess.run(watched, stdout=subprocess.PIPE, check=True).stdout.decode(errors="replace")
        code, wall_s, cpu_s, maxrss = json.load(result)
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {message}")
    # Linux counts kilobytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return Usage(cpu_s=cpu_s, wall_s=wall_s, peak_rss_bytes=maxrss * unit, output=message)


def interleaved(commands: Mapping[str, Sequence[str]], *, rounds: int) -> dict[str, list[Usage]]:
    """Every command once a round, in turn: usages by the command's name, in the order of the rounds."""
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(measure(command))
    return found


def median_cpu_s(usages: Sequence[Usage]) -> float:
    return statistics.median(usage.cpu_s for usage in usages)
