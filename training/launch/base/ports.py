"""Ports for servers that are told theirs before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOWEST = 10_000
NUM_TRIES = 100
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(address: str = LOOPBACK) -> int:
    """A port of this machine's address that nobody has, and that the kernel gives to no connection until it is used."""
    draw = random.SystemRandom()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Below the ephemeral range, whose ports the kernel gives to outgoing connections before ours is used.
    # At random, so that two launchers rarely choose alike; at last 0, by which the kernel chooses.
    for port in [*(draw.randrange(LOWEST, _first_ephemeral()) for _ in range(NUM_TRIES)), 0]:
        with socket.socket(family) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise OSError(f"no port of {address} can be had")


def _first_ephemeral() -> int:
    """The lowest of those that connections get; the usual one where it is not known or leaves us none."""
    try:
        first = int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    return first if first > LOWEST + NUM_TRIES else 32_768
