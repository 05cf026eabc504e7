"""Ports for servers that are told theirs before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from training.launch.spec import LOOPBACK

LOWEST = 10_000
NUM_TRIES = 100
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port of loopback that nobody has, and that the kernel gives to no connection in the time until it is used."""
    draw = random.SystemRandom()
    for port in [*(draw.randrange(LOWEST, _first_ephemeral()) for _ in range(NUM_TRIES)), 0]:
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise AssertionError("the last of them is any port")


def _first_ephemeral() -> int:
    """The lowest of those that connections get; the usual one where it is not known or leaves us none."""
    try:
        first = int(EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    return first if first > LOWEST + NUM_TRIES else 32_768
