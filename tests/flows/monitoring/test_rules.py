"""Rules and routes name what there is: families, their labels, states, alerts, headings of runbooks and commands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
import yaml

from headway.data_contracts.store.documents import Severity
from headway.data_contracts.store.errors import Cause
from headway.flows.accounts.goodput import STATES
from headway.flows.accounts.objectives import CLASS_OBJECTIVES, OBJECTIVES
from headway.flows.cli.command_line import app
from headway.flows.config.job_class import JobClass
from headway.flows.monitoring import rules
from headway.flows.monitoring.alerts import ALERTS
from headway.flows.monitoring.burn_rates import BURN_RATES, windows
from headway.flows.monitoring.families import FAMILIES, SEVERE_XIDS
from tests.pages import HOME

FOLDER = HOME / "deployments" / "monitoring"
RUNBOOKS = HOME / "docs" / "operations" / "alerts.md"
SELECTOR = re.compile(r"(?<![\w:])([a-z_]+(?::[a-z0-9_]+)+|(?:train|headway)_[a-z_]+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
OF_THE_SITE = {"headway:silence_limit:seconds"}
"""Series that a site records beside these rules."""
KNOWN_VALUES = {
    "cause": set(get_args(Cause)),
    "state": {*STATES, "stopped", "silent"},
    "outcome": {"succeeded", "failed", "lost", "ok", "corrupt", "done", "cut"},
    "op": {"verify"},
    "stage": {"launch", "total"},
    "phase": {"step"},
    "resource": {"cpu", "memory", "io"},
    "share": {"some", "full"},
    "job": {"headway"},
    "job_class": set(get_args(JobClass)),
    "xid": set(SEVERE_XIDS),
    "why": {"power_cap", "power_brake", "heat"},
    "rule_severity": set(get_args(Severity)),
}
BY_NAME = {alert.name: alert for alert in ALERTS}


@cache
def all_rules() -> list[dict[str, Any]]:
    return [rule for group in rules.groups() for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in all_rules() if "record" in rule}


def test_the_shipped_rules_are_those_of_the_code() -> None:
    written = (FOLDER / "rules.yaml").read_text()
    assert written == rules.rendered(), "`python -m headway.flows.monitoring.rules` writes them anew"
    assert yaml.safe_load(written) == {"groups": rules.groups()}


def family_of(name: str) -> str:
    base = re.sub(r"_(?:bucket|sum|count)$", "", name)
    return base if base in FAMILIES and FAMILIES[base].kind == "histogram" else name


@pytest.mark.parametrize("rule", [pytest.param(each, id=each.get("alert") or each["record"]) for each in all_rules()])
def test_a_rule_names_families_their_labels_and_values_that_there_are(rule: dict[str, Any]) -> None:
    found = SELECTOR.findall(rule["expr"])
    assert found or "up{" in rule["expr"]
    for name, matchers in found:
        assert name in recorded() | OF_THE_SITE or family_of(name) in FAMILIES, name
        for label, values in MATCHER.findall(matchers):
            labels = ("job_class",) if name.startswith("class:") else FAMILIES[family_of(name)].labels
            assert label == "job" or label in labels, (name, label)
            assert set(values.split("|")) <= KNOWN_VALUES[label], (label, values)


def test_a_total_is_recorded_before_it_is_named_and_in_the_same_group() -> None:
    """Then an alert sees what the same look has brought."""
    for group in rules.groups():
        known: set[str] = set()
        for rule in group["rules"]:
            named = {name for name, _ in SELECTOR.findall(rule["expr"]) if ":" in name} - OF_THE_SITE
            assert named <= known, rule
            known |= {rule["record"]} if "record" in rule else set()


def test_a_family_that_is_not_there_is_seen() -> None:
    (found,) = SELECTOR.findall('rate(train_run_total{pipelin="a"}[5m]) > 0')
    assert found == ("train_run_total", 'pipelin="a"') and family_of(found[0]) not in FAMILIES


def test_every_alert_says_what_where_and_what_next_and_how_urgent_it_is() -> None:
    root: Any = typer.main.get_command(app)
    for rule in (each for each in all_rules() if "alert" in each):
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert "{{ $labels." in notes["summary"] or "count without" in rule["expr"] or "nonfinite" in rule["expr"]
        commands = re.findall(r"`headway ([^`]+)`", notes["description"])
        assert commands, rule["alert"]
        for words in map(shlex.split, commands):
            command = root.commands[words[0]]
            options = {option for each in command.params for option in each.opts}
            assert {word for word in words if word.startswith("--")} <= options


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(headings) == set(BY_NAME)
    links = {rule["annotations"]["runbook_url"] for rule in all_rules() if "alert" in rule}
    place = "{{ $externalLabels.runbooks }}/operations/alerts.html#"
    assert links == {f"{place}{heading.lower()}" for heading in headings}
    assert RUNBOOKS.relative_to(HOME / "docs").with_suffix(".html").as_posix() == rules.RUNBOOKS


def test_a_runbook_says_what_it_means_how_to_see_it_what_to_do_and_when_it_is_over() -> None:
    sections = re.split(r"^### ", RUNBOOKS.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        name, _, text = section.partition("\n")
        said = re.findall(r"^- \*\*([^*]+)\.\*\*", re.split(r"^## ", text, flags=re.MULTILINE)[0], re.MULTILINE)
        assert said == ["See", "Do", "Do not", "Over"], name


def test_each_of_the_ten_failure_modes_has_a_section_and_an_alert() -> None:
    page = (HOME / "docs" / "operations" / "failure-modes.md").read_text()
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[a-z-]+\) \| \[(\w+)\]", page, re.MULTILINE)
    assert [mode for mode, _ in rows] == re.findall(r"^## (.+)$", page, re.MULTILINE) and len(rows) == 10
    assert {alert for _, alert in rows} <= set(BY_NAME)


def test_routes_name_alerts_severities_and_labels_that_there_are() -> None:
    config = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text())
    inhibited = config["inhibit_rules"]
    named: set[str] = set()
    for rule in inhibited:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            label, value = re.fullmatch(r'(\w+) =~? "([^"]+)"', matcher).groups()  # type: ignore[union-attr]
            if label == "alertname":
                named |= set(value.split("|"))
            elif label == "severity":
                assert value in ("page", "ticket")
            else:
                assert value in KNOWN_VALUES[label]
    assert named <= set(BY_NAME) and len(inhibited) > 10


def test_what_keeps_a_page_back_is_a_page() -> None:
    """A ticket that nobody reads at night must not hide what somebody has to see."""
    config = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text())
    pages = {rule["alert"] for rule in all_rules() if rule.get("labels", {}).get("severity") == "page"}
    for rule in config["inhibit_rules"]:
        sources, targets = (
            {name for each in rule[f"{side}_matchers"] for name in re.findall(r"[A-Z]\w+", each)}
            for side in ("source", "target")
        )
        assert not targets & pages or sources <= pages, rule


def test_pages_and_tickets_are_the_windows_of_the_objectives() -> None:
    assert windows() == ("5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d")
    for objective in OBJECTIVES:
        for severity in objective.severities:
            rates = BURN_RATES[severity]
            (rule,) = (
                each
                for each in all_rules()
                if each.get("alert") == objective.alert and each["labels"]["severity"] == severity
            )
            limits = [f"> {rate:g} * {1 - objective.target:.3g}" for rate, _, _ in rates]
            of = f'{{job_class="{objective.job_class}"}}' if objective.job_class else ""
            assert all(f"{of} {limit}\nand" in rule["expr"] for limit in limits)


def test_each_job_class_has_objectives_and_an_experiment_wakes_nobody() -> None:
    assert tuple(CLASS_OBJECTIVES) == get_args(JobClass)
    targets = [each.success for each in CLASS_OBJECTIVES.values()]
    assert targets == sorted(targets, reverse=True), "what is more urgent is held to more"
    experiment = CLASS_OBJECTIVES["experiment"]
    assert experiment.in_window is None and experiment.success_burns == ("ticket",)
    for rule in (each for each in all_rules() if each.get("alert", "").endswith("BudgetBurns")):
        assert ('job_class="experiment"' in rule["expr"]) == (
            rule["alert"] == "RunBudgetBurns" and rule["labels"]["severity"] == "ticket"
        )


def test_the_example_for_prometheus_reads_the_shipped_rules_and_asks_as_the_exporter_is_asked() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "headway" and job["basic_auth"]["username"] == "headway"
    assert "password" not in job["basic_auth"]
    assert all((Path(FOLDER) / file).exists() for file in config["rule_files"])
