"""The exporter answers who has the password, on one address, also beside clients that are slow, many or gone."""

from __future__ import annotations

import base64
import http.client
import shutil
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.monitoring.closed_server import MAX_CONNECTIONS, listen_address, served_password
from headway.flows.monitoring.exporter import PASSWORD_FILE, Exporter, write_textfile
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from tests.flows.accounts.lives import Life

PASSWORD = "headway:secret"
DEADLINE_S = 30.0


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


@pytest.fixture
def exporter(life: Life) -> Iterator[Exporter]:
    with Exporter(("127.0.0.1", 0), WorkspaceMetrics(life.workspace), PASSWORD) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def ask(exporter: Exporter, path: str = "/metrics", password: str = PASSWORD, accept: str = "") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", exporter.server_address[1], timeout=DEADLINE_S)
    try:
        headers = {"Authorization": "Basic " + base64.b64encode(password.encode()).decode()} if password else {}
        connection.request("GET", path, headers=headers | ({"Accept": accept} if accept else {}))
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("password", ["", "headway:", "headway:secreT", "other:secret", "headway:sécret"])
def test_who_lacks_the_password_is_told_nothing(exporter: Exporter, password: str) -> None:
    status, _, text = ask(exporter, password=password)
    assert status == 401 and "train_" not in text


def test_metrics_come_in_the_form_that_the_scraper_asks_for(exporter: Exporter) -> None:
    status, content_type, text = ask(exporter)
    assert status == 200 and content_type.startswith("text/plain") and "train_steps_total 0.0" in text
    status, content_type, text = ask(exporter, accept="application/openmetrics-text; version=1.0.0")
    assert status == 200 and content_type.startswith("application/openmetrics-text") and text.endswith("# EOF\n")


def test_no_other_path_is_served(exporter: Exporter) -> None:
    assert [ask(exporter, path)[0] for path in ("/", "/../../etc/passwd", "/metricsx")] == [404, 404, 404]


def test_a_workspace_that_went_away_makes_the_target_down_and_comes_back(exporter: Exporter, life: Life) -> None:
    root = life.workspace.local_root
    shutil.move(root, root.with_name("elsewhere"))
    status, _, text = ask(exporter)
    assert status == 503 and str(root) in text and not root.exists()
    shutil.move(root.with_name("elsewhere"), root)
    assert ask(exporter)[0] == 200


def test_connections_that_say_nothing_keep_no_scraper_out(exporter: Exporter) -> None:
    """Silence needs no password: any user of the machine could blind whoever watches, and wake a person for it."""
    address = str(exporter.server_address[0]), int(exporter.server_address[1])
    silent = [socket.create_connection(address) for _ in range(MAX_CONNECTIONS + 4)]
    assert [ask(exporter)[0] for _ in range(3)] == [200, 200, 200]
    silent[0].settimeout(DEADLINE_S)
    assert silent[0].recv(1) == b"", "the oldest makes room"
    for connection in silent:
        connection.close()


def test_who_asks_a_byte_at_a_time_is_not_heard_to_the_end(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline for each byte is none: some connections would keep Prometheus out for ever."""
    monkeypatch.setattr("headway.flows.monitoring.closed_server.REQUEST_S", 0.3)
    with socket.create_connection(exporter.server_address[:2]) as slow:  # type: ignore[arg-type]
        slow.settimeout(0.05)
        until_s = time.monotonic() + DEADLINE_S
        closed = False
        while not closed and time.monotonic() < until_s:
            try:
                slow.sendall(b"G")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                closed = True
        assert closed


def test_an_address_that_is_taken_is_one_sentence(exporter: Exporter, life: Life) -> None:
    taken = exporter.server_address[:2]
    with pytest.raises(EnvironmentProblem, match="it cannot listen there"):
        Exporter((str(taken[0]), int(taken[1])), WorkspaceMetrics(life.workspace), PASSWORD)


EVERYWHERE = [
    "0.0.0.0",
    "",
    "[::]",
    "*",
    "0",
    "0x0",
    "00.0.0.0",
    "0.0",
    "000000000000",
    "[::0]",
    "[::ffff:0.0.0.0]",
    "[]",
]


@pytest.mark.parametrize("text", [f"{host}:9464" for host in EVERYWHERE])
def test_it_never_listens_on_all_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="never on all of a machine"):
        listen_address(text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", f"127.0.0.1:{'9' * 5000}"]
)
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        listen_address(text)


def test_the_password_is_drawn_once_and_its_file_is_what_prometheus_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    password, file = served_password(None, PASSWORD_FILE)
    assert password == f"headway:{file.read_text().strip()}" and len(password) > 30
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert served_password(None, PASSWORD_FILE) == (password, file)
    given = tmp_path / "given"
    given.write_text("mine\n")
    assert served_password(given, PASSWORD_FILE) == ("headway:mine", given)
    given.write_text("\n")
    with pytest.raises(ConfigError, match="the password is empty"):
        served_password(given, PASSWORD_FILE)


def test_a_file_for_the_collector_is_whole_and_readable_or_not_there(life: Life, tmp_path: Path) -> None:
    path = tmp_path / "headway.prom"
    write_textfile(WorkspaceMetrics(life.workspace), path)
    assert "train_steps_total 0.0" in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert sorted(each.name for each in tmp_path.iterdir()) == ["headway.prom", "workspace"]
    with pytest.raises(EnvironmentProblem, match="it cannot be written"):
        write_textfile(WorkspaceMetrics(life.workspace), tmp_path / "missing" / "headway.prom")
