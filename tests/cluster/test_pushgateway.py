"""A last word through Debian's own Pushgateway, behind its password, into Prometheus with the shipped rules."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.console.environment import PUSHGATEWAY
from headway.flows.monitoring.last_word import instance_of, push
from tests.cluster.monitoring import (
    GATEWAY_PASSWORD,
    GATEWAY_USER,
    SHIPPED,
    running_prometheus,
    running_pushgateway,
    shipped,
)
from tests.cluster.prerequisites import why_no_monitoring
from tests.flows.accounts.lives import Life
from tests.waiting import wait_until

WITHIN_S = 30.0


def test_a_last_word_is_kept_replaced_and_scraped_and_the_rules_take_it(tmp_path: Path) -> None:
    if reason := why_no_monitoring():
        pytest.skip(reason)
    life = Life(tmp_path)
    now = time.time()
    life.flow("first", now - 100, now - 50, ("launch", now - 90, now - 60))
    with running_pushgateway(tmp_path / "gateway") as gateway:
        with pytest.raises(EnvironmentProblem, match="HTTP 401"):
            push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: gateway.url})
        address = {PUSHGATEWAY: gateway.url.replace("//", f"//{GATEWAY_USER}:{GATEWAY_PASSWORD}@")}
        push(life.workspace, None, WITHIN_S, address)
        life.flow("second", now - 40, now - 20, failed=("TrainingFailed", "infrastructure", "launch"))
        push(life.workspace, None, WITHIN_S, address)
        config = shipped("prometheus.yaml")
        config["global"] |= {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
        config["rule_files"] = [str(SHIPPED / "rules.yaml")]
        config["alerting"] = {}
        # As docs/how-to/monitoring.md has it.
        config["scrape_configs"] = [
            {
                "job_name": "headway-pushed",
                "honor_labels": True,
                "basic_auth": {"username": GATEWAY_USER, "password": GATEWAY_PASSWORD},
                "static_configs": [{"targets": [gateway.url.removeprefix("http://")]}],
            }
        ]
        with running_prometheus(tmp_path / "prometheus", config) as prometheus:

            def values(expr: str) -> dict[tuple[str, str, str], float]:
                found = prometheus.get(f"/api/v1/query?query={expr}")["data"]["result"]
                return {
                    (each["metric"]["job"], each["metric"]["instance"], each["metric"].get("outcome", "")): float(
                        each["value"][1]
                    )
                    for each in found
                    if float(each["value"][1])
                }

            of = ("headway", instance_of(life.workspace))
            both = {(*of, "succeeded"): 1.0, (*of, "failed"): 1.0}
            wait_until(lambda: values("train_runs_total") == both, what="both flow runs, once each", every_s=0.1)
            rule = "pipeline:runs_failed:total"
            wait_until(lambda: values(rule) == {(*of, ""): 1.0}, what="what rules make of it", every_s=0.1)
            rules = prometheus.get("/api/v1/rules")["data"]["groups"]
            assert [rule["lastError"] for group in rules for rule in group["rules"] if rule.get("lastError")] == []
