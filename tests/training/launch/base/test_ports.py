from __future__ import annotations

import socket

import pytest

from headway.training.launch.base import ports
from headway.training.launch.base.ports import EPHEMERAL, LOOPBACK, LOWEST, free_port


def test_a_port_is_none_that_a_connection_may_get_before_it_is_used() -> None:
    first = int(EPHEMERAL.read_text().split()[0])
    if first <= LOWEST + ports.NUM_TRIES:
        pytest.skip("connections may get any port here")
    assert all(LOWEST <= free_port() < first for _ in range(50))


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        port = free_port()
        taken.bind((LOOPBACK, port))
        monkeypatch.setattr(ports, "LOWEST", port)
        monkeypatch.setattr(ports, "_first_ephemeral", lambda: port + 1)
        assert free_port() != port
