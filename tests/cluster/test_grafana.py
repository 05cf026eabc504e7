"""Every panel of the Grafana boards, asked of a live Prometheus that scrapes all families and looks at the rules."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from docs.grafana import BOARDS, rendered
from headway.flows.accounts.figures import Histogram
from headway.flows.monitoring.exporter import Exporter
from headway.flows.monitoring.families import FAMILIES
from headway.flows.monitoring.samples import Samples
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from tests.cluster.monitoring import SHIPPED, Daemon, running_prometheus, shipped
from tests.cluster.prerequisites import why_no_monitoring
from tests.waiting import wait_until

VALUES = {
    "outcome": ("succeeded", "failed", "ok", "done", "cut"),
    "phase": ("step", "data", "sync"),
    "stage": ("total", "launch"),
    "cause": ("oom", "infrastructure"),
    "rank": ("0", "1"),
    "kind": ("a", "uncorrected"),
}
"""Of labels that panels ask for, or that a picture has several of; any other has one."""
DCGM = tuple(f"DCGM_FI_DEV_{field}" for field in ("GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP", "XID_ERRORS"))
"""Fields of NVIDIA's exporter that boards take as well as ours."""
DCGM_LABELS = ("gpu", "Hostname")
EXPRESSIONS = {
    f"{board.name}: {panel.title}, {place}": expr
    for board in BOARDS
    for _, panels in board.rows
    for panel in panels
    for place, (expr, _) in enumerate(panel.queries)
}


class AllFamilies:
    """Something of each family that is declared, and more of it at each look."""

    def __init__(self) -> None:
        self._num_looks = 0

    def collect(self) -> list[Metric]:
        self._num_looks += 1
        samples = Samples()
        for name, family in FAMILIES.items():
            for values in itertools.product(*(VALUES.get(label, ("a",)) for label in family.labels)):
                labels = dict(zip(family.labels, values, strict=True))
                if family.kind == "histogram":
                    histogram = Histogram.empty("step")
                    for _ in range(self._num_looks):
                        histogram.take(0.02)
                    samples.histogram(name, histogram, **labels)
                else:
                    samples.value(name, float(self._num_looks), **labels)
        devices = [GaugeMetricFamily(name, "As DCGM's exporter has it.", labels=DCGM_LABELS) for name in DCGM]
        for family in devices:
            family.add_metric(["0", "a"], float(self._num_looks))
        return [*samples.families(), *devices]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    if reason := why_no_monitoring():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("grafana")
    config = shipped("prometheus.yaml")
    del config["alerting"]
    config["global"]["scrape_interval"] = "1s"
    rules = shipped("rules.yaml")
    for group in rules["groups"]:
        group["interval"] = "1s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config["rule_files"] = [str(folder / "rules.yaml")]
    (job,) = config["scrape_configs"]
    (folder / "password").write_text("a-password")
    job["basic_auth"]["password_file"] = str(folder / "password")
    metrics = cast(WorkspaceMetrics, AllFamilies())
    with Exporter(("127.0.0.1", 0), metrics, "headway:a-password") as exporter:
        threading.Thread(target=exporter.serve_forever, args=(0.05,), daemon=True).start()
        job["static_configs"] = [{"targets": [f"127.0.0.1:{exporter.server_address[1]}"]}]
        with running_prometheus(folder / "prometheus", config) as daemon:
            yield daemon
        exporter.shutdown()


def asked(prometheus: Daemon, expr: str) -> list[Any]:
    filled_in = expr.replace("$pipeline", ".*")
    found = prometheus.get(f"/api/v1/query?query={urllib.parse.quote(filled_in)}")["data"]["result"]
    assert isinstance(found, list)
    return found


def test_every_expression_of_every_panel_returns_data(prometheus: Daemon) -> None:
    missing = dict(EXPRESSIONS)

    def all_have() -> bool:
        for name, expr in EXPRESSIONS.items():
            if name in missing and asked(prometheus, expr):
                del missing[name]
        return not missing

    with contextlib.suppress(AssertionError):
        wait_until(all_have, what="data of every panel", within_s=60.0, every_s=0.5)
    assert not missing


def test_a_label_that_no_family_has_returns_nothing(prometheus: Daemon) -> None:
    """Else the test above would pass for any expression."""
    assert not asked(prometheus, 'train_loss{pipelines=~".+"}')


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_file_of_a_board_is_that_of_its_script_and_names_its_data_source_by_a_variable(board: Any) -> None:
    text = Path(SHIPPED / f"grafana-{board.name}.json").read_text()
    assert text == rendered(board), "run `python -m docs.grafana`"
    found = json.loads(text)
    assert {each["name"] for each in found["templating"]["list"]} == {"source", "pipeline"}
    sources = {json.dumps(panel["datasource"]) for panel in found["panels"] if panel["type"] != "row"}
    assert sources == {json.dumps({"type": "prometheus", "uid": "${source}"})}
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
