"""Trying out whether alerts arrive, where they cannot: what is said of it. Live ones are in tests/cluster."""

from __future__ import annotations

import re

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
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


def test_every_alert_is_listed_in_words_with_its_severity(capsys: pytest.CaptureFixture[str]) -> None:
    assert {alert.severity for alert in chosen("page")} == {"page"} and chosen(None) == list(ALERTS)
    print_alerts(chosen(None))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[alert.severity, alert.name] for alert in ALERTS]
    assert not re.search(r"[{}$]", "".join(lines))
