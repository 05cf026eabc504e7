"""Trying out whether alerts arrive, where they cannot: what is said of it. Live ones are in tests/cluster."""

from __future__ import annotations

import contextlib
import re
import socket
import threading

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.monitoring import alert_delivery
from headway.flows.monitoring.alert_delivery import chosen, print_alerts, try_alertmanager
from headway.flows.monitoring.alerts import ALERTS
from headway.training.launch.base.ports import free_port

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:9093",
        "ftp://127.0.0.1:9093",
        "http://",
        "http://ops:hunter2@127.0.0.1:9093",
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:x",
    ],
)
def test_what_is_no_address_is_refused_and_a_password_in_it_is_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address of an Alertmanager") as refused:
        try_alertmanager(address, chosen(None))
    assert "hunter2" not in str(refused.value)


def test_where_nobody_answers_is_told() -> None:
    with pytest.raises(EnvironmentProblem, match="does not take alerts"):
        try_alertmanager(f"http://127.0.0.1:{free_port()}", chosen(None))


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
COUNTED = HEAD + b'alertmanager_notification_requests_total{integration="x"} '


@pytest.mark.parametrize(
    ("answer", "is_repeated", "told"),
    [
        *(
            (COUNTED + number + b"\n", False, "a counter says")
            for number in (b"NaN", b"+Inf", b"many", b"-1", b"1e400")
        ),
        (HEAD + b"x" * 1024, True, "more than any Alertmanager does"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n", True, "does not take alerts"),
        (b"HTTP/1.1 500 No\r\n\r\nno \x1b[31m", False, "500: no"),
        (b"HTTP/1.1 302 No\r\nlocation: http://127.0.0.1:1/\r\n\r\n", False, "302: "),
        (b"", True, "no whole answer within"),
        (b"\0", False, "does not take alerts"),
    ],
)
def test_whoever_took_its_port_keeps_nobody_waiting_and_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, is_repeated: bool, told: str
) -> None:
    monkeypatch.setattr(alert_delivery, "ANSWER_S", 1.0)
    monkeypatch.setattr(alert_delivery, "MAX_ANSWER_BYTES", 1 << 16)
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as connections:

        def answer_all() -> None:
            with contextlib.suppress(OSError):  # it is closed, or the client had enough
                while True:
                    connection = connections.enter_context(server.accept()[0])
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    while is_repeated and answer:
                        connection.sendall(answer)
                    if answer:
                        connection.close()

        threading.Thread(target=answer_all, daemon=True).start()
        with pytest.raises(EnvironmentProblem, match=re.escape(told)):
            try_alertmanager(f"http://127.0.0.1:{server.getsockname()[1]}", chosen(None))


def test_every_alert_is_listed_in_words_with_its_severity(capsys: pytest.CaptureFixture[str]) -> None:
    assert {alert.severity for alert in chosen("page")} == {"page"} and chosen(None) == list(ALERTS)
    print_alerts(chosen(None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[alert.severity, alert.name] for alert in ALERTS]
    assert not re.search(r"[{}$]", "".join(lines))
