"""A sample has the names and values of MLflow's own monitors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from headway.tasks.tracking.system_metrics import SystemMetrics


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose figures stand still, but for the network, which carries more each time."""
    carried = iter(range(100))

    def network() -> Any:
        number = next(carried) // 2  # both ask in turn
        return SimpleNamespace(bytes_recv=1_234_567 * number, bytes_sent=7_654_321 * number)

    for name, value in {
        "cpu_percent": 12.34,
        "virtual_memory": SimpleNamespace(used=12_345_678_901, total=67_890_123_456),
        "disk_usage": SimpleNamespace(used=98_765_432_109, free=1_234_567_890, percent=98.76),
    }.items():
        monkeypatch.setattr(psutil, name, lambda *_, value=value: value)
    monkeypatch.setattr(psutil, "net_io_counters", network)


def by_mlflow(monitors: list[Any]) -> dict[str, float]:
    made: dict[str, float] = {}
    for monitor in monitors:
        monitor.collect_metrics()
        made |= monitor.aggregate_metrics()
    return made


def test_a_sample_is_mlflows(machine: None) -> None:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    ours, theirs = SystemMetrics(), [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    made = ours.sample()
    assert {name: value for name, value in made.items() if not name.startswith("gpu_")} == by_mlflow(theirs)
    assert made["network_receive_megabytes"] > 0


@pytest.mark.parametrize("is_silent", [False, True])
def test_devices_are_sampled_as_mlflow_does(machine: None, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool) -> None:
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

    def says_nothing(_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    says = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetMemoryInfo": lambda number: SimpleNamespace(used=123_456_789 * (number + 1), total=987_654_321),
        "nvmlDeviceGetUtilizationRates": lambda number: SimpleNamespace(gpu=17 + number),
        "nvmlDeviceGetPowerUsage": says_nothing if is_silent else lambda number: 123_456 + number,
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    }
    for name, function in says.items():
        monkeypatch.setattr(pynvml, name, function)
    made = {name: value for name, value in SystemMetrics().sample().items() if name.startswith("gpu_")}
    assert made == by_mlflow([GPUMonitor()])
    assert len(made) == 2 * (3 if is_silent else 5)
