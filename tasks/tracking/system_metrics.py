"""How busy this machine is, by the names and in the units of MLflow's own monitors."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psutil


class SystemMetrics:
    """Bytes that the network carries are counted from the first moment on."""

    def __init__(self) -> None:
        network = psutil.net_io_counters()
        self._received_mb, self._sent_mb = network.bytes_recv / 1e6, network.bytes_sent / 1e6
        self._devices = _Devices.found()

    def sample(self) -> dict[str, float]:
        memory, disk, network = psutil.virtual_memory(), psutil.disk_usage(os.sep), psutil.net_io_counters()
        rounded = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
        }
        return {
            **{name: round(value, 1) for name, value in rounded.items()},
            "network_receive_megabytes": network.bytes_recv / 1e6 - self._received_mb,
            "network_transmit_megabytes": network.bytes_sent / 1e6 - self._sent_mb,
            **({} if self._devices is None else self._devices.sample()),
        }


class _Devices:
    """GPUs of NVIDIA's; what one of them does not say is left out."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]

    @classmethod
    def found(cls) -> _Devices | None:
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml)
        except Exception:  # no GPU, or no library for its driver
            return None

    def sample(self) -> dict[str, float]:
        nvml, made = self._nvml, dict[str, float]()
        for number, handle in enumerate(self._handles):
            gpu = f"gpu_{number}"
            with contextlib.suppress(nvml.NVMLError):
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                made[f"{gpu}_memory_usage_percentage"] = round(memory.used / memory.total * 100, 1)
                made[f"{gpu}_memory_usage_megabytes"] = round(memory.used / 1e6, 1)
            with contextlib.suppress(nvml.NVMLError):
                made[f"{gpu}_utilization_percentage"] = round(nvml.nvmlDeviceGetUtilizationRates(handle).gpu, 1)
            with contextlib.suppress(nvml.NVMLError):
                used_mw, limit_mw = nvml.nvmlDeviceGetPowerUsage(handle), nvml.nvmlDeviceGetEnforcedPowerLimit(handle)
                made[f"{gpu}_power_usage_watts"] = round(used_mw / 1000, 1)
                made[f"{gpu}_power_usage_percentage"] = round(used_mw / limit_mw * 100, 1)
        return made
