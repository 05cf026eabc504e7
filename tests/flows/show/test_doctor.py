"""`headway doctor` finds what would fail, all of it, and says so without a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from headway.flows.cli.command_line import run
from headway.flows.show import doctor
from headway.flows.show.delivered_alerts import DeliveredAlerts, keep_delivered


@pytest.fixture
def look(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headway", "doctor", *arguments])
        capsys.readouterr()
        with temporary_settings({PREFECT_API_URL: None}):
            code = run()
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ranks_meet", lambda: "met")


@pytest.mark.process
def test_an_installation_in_order_has_no_fault_and_nothing_is_left_of_the_look(look, project: Path) -> None:
    code, out, err = look("tiny.yaml", "--json")
    found = {each["what"]: each for each in json.loads(out)["findings"]}
    assert (code, err) == (0, "")
    assert {each["state"] for each in found.values()} <= {"ok", "note"}
    assert "two ranks met by gloo" in found["ranks"]["message"]
    assert "127.0.0.1" in found["hosts (local)"]["message"]
    assert found["files"]["state"] == "note" and "editable install has no record" in found["files"]["message"]
    assert [path for path in (project / "workspace").rglob("*") if path.is_file()] == []


def test_all_that_would_fail_is_said_at_once_with_exit_code_8(look, project: Path, without_ranks: None) -> None:
    with (project / "tiny.yaml").open("a") as file:
        file.write("\nlaunch: {preflight: {environment: [NO_SUCH_SECRET]}}\n")
    (project / "file").write_text("")
    code, out, err = look("tiny.yaml", "--workspace", str(project / "file"))
    assert code == 8 and "Traceback" not in err
    assert {line.split()[1] for line in out.splitlines() if "FAULT" in line} == {"workspace", "pipeline"}
    code, out, err = look("tiny.yaml")
    assert code == 8 and "NO_SUCH_SECRET is not set" in out and "1 of 11 would fail: hosts (local)" in err


def test_what_the_system_refuses_is_a_finding_and_the_rest_is_told_too(
    look, project: Path, without_ranks: None
) -> None:
    (project / "workspace").mkdir()
    (project / "workspace" / "runs").write_text("")  # a file where hosts share a folder
    code, out, err = look("tiny.yaml")
    assert code == 8 and "1 of 11 would fail: hosts (local)" in err
    assert "File exists" in out and str(project / "workspace" / "runs") in out


def test_a_server_that_does_not_answer_and_a_pipeline_that_is_not_there_are_named(
    look, without_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.flows.prefect_api import ephemeral_server

    monkeypatch.setattr(doctor, "_prefect", lambda: ephemeral_server.require_answer("http://127.0.0.1:9/api") or "")
    code, out, _ = look("tinny.yaml")
    told = {line.split()[1]: line for line in out.splitlines() if "FAULT" in line}
    assert code == 8 and told.keys() == {"Prefect", "pipeline"}
    assert "does not answer" in told["Prefect"] and "no such pipeline file" in told["pipeline"]


def test_packages_that_headway_was_not_tested_with_are_named(
    look, without_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ["pydantic<1", "no-such-package>=1", 'hypothesis; extra == "dev"', "numpy"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: needed)
    code, out, _ = look()
    assert (
        code == 8 and "pydantic is 2." in out and "no-such-package is not installed" in out and "hypothesis" not in out
    )


@pytest.mark.process
def test_ranks_that_cannot_meet_are_told_in_their_own_words(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEETING", "raise OSError('no interface is called lo')")
    code, out, _ = look()
    assert code == 8 and "OSError: no interface is called lo" in out


def test_an_open_prefect_server_is_noted_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from headway.flows.show.doctor import prefect_finding

    monkeypatch.setattr(doctor, "require_answer", lambda _: None)
    monkeypatch.setattr(doctor, "openness", lambda url: f"the Prefect server {url} is open")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        finding = prefect_finding()
    assert (finding.state, finding.message) == ("note", "the Prefect server http://127.0.0.1:9/api is open")


PROFILES = """
project: shop
profiles:
  bare: {pool: {name: headway}}
  ready:
    pool: {name: headway}
    notify: slack-webhook/ops
    housekeeping: {scrub_gb: 10}
    prices: {device_hour_usd: {cpu: 0.05}}
    reports: [week]
"""


@pytest.mark.process
def test_what_is_not_ready_for_production_is_noted_by_profile(
    look, project: Path, without_ranks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headway.flows.show.delivered_alerts.private_folder", lambda: tmp_path)
    monkeypatch.setenv("HEADWAY_PROJECT", str(project))
    (project / "deployments").mkdir(exist_ok=True)
    (project / "deployments" / "profiles.yaml").write_text(PROFILES)
    named = ("notify", "alerts", "scrub", "prices", "reports")

    def states(profile: str) -> dict[str, str]:
        code, out, _ = look("--profile", profile, "--json")
        assert code == 0
        found = {each["what"]: each["state"] for each in json.loads(out)["findings"]}
        return {name: found[name] for name in named}

    assert states("bare") == dict.fromkeys(named, "note")
    assert states("ready") == {**dict.fromkeys(named, "ok"), "alerts": "note"}
    keep_delivered("http://127.0.0.1:9093")
    assert states("ready") == dict.fromkeys(named, "ok")
    (tmp_path / "alerts-delivered.json").write_text(DeliveredAlerts(to="x", unix_s=1.0).model_dump_json())
    assert states("ready")["alerts"] == "note", "a year ago is no proof"
    (tmp_path / "alerts-delivered.json").write_text("{")
    assert states("ready")["alerts"] == "note"
    code, _, err = look("--profile", "nope")
    assert code == 2 and "There are: bare, ready." in err
