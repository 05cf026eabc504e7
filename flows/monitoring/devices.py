"""What NVIDIA's management library says of this machine's devices: use, memory, heat, power, errors, throttling.

Where it is missing there are no such figures. Names and units are ours; boards take those of the DCGM exporter as well.
Source: NVML API reference guide of NVIDIA; `pynvml` calls it.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

import pynvml

from headway.flows.monitoring.families import SEVERE_XIDS
from headway.flows.monitoring.samples import Samples

ANSWERS_WITHIN_S = 2.0
"""A device that fell off its bus can keep a call to the driver waiting for ever."""
THROTTLES = {
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
    "heat": pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
}
"""Why a device runs slower than it could. Not the idle ones, nor clocks that a person has set."""
ECC_ERRORS = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
MILLI = 1e-3

_Value = tuple[str, dict[str, str], float]


class DeviceFigures:
    """Opens the library at the first look and keeps it, for it counts the errors that come between two looks."""

    def __init__(self) -> None:
        self._is_open: bool | None = None
        self._devices: dict[str, pynvml.c_nvmlDevice_t] = {}
        """By number, all that were ever seen."""
        self._errors: pynvml.c_nvmlEventSet_t | None = None
        self._xids = Counter[tuple[str, str]]()
        self._look: threading.Thread | None = None
        self._found: list[_Value] = []

    def fill(self, samples: Samples) -> None:
        """Nothing where there is no library; of one that does not answer, that it does not."""
        if self._is_open is None:
            self._is_open = _open()
        if not self._is_open:
            return
        if self._look is None:
            self._look = threading.Thread(target=self._read, daemon=True)
            self._look.start()
        self._look.join(ANSWERS_WITHIN_S)
        has_answered = not self._look.is_alive()
        samples.value("train_node_devices_answer", float(has_answered), node=socket.gethostname())
        if has_answered:
            self._look = None
            for name, labels, value in self._found:
                samples.value(name, value, **labels)

    def _read(self) -> None:
        self._found, node = [], socket.gethostname()
        with contextlib.suppress(pynvml.NVMLError):
            for at in range(pynvml.nvmlDeviceGetCount()):
                # One that fell off its bus has no handle any more, and is known by the one that it had.
                with contextlib.suppress(pynvml.NVMLError):
                    self._devices[str(at)] = pynvml.nvmlDeviceGetHandleByIndex(at)
        if self._errors is None:
            self._errors = _listen(self._devices.values())
        for number, device in self._devices.items():
            for name, labels, value in _figures(device):
                self._found.append((name, {"node": node, "device": number, **labels}, value))
        self._count_errors()
        # A series that begins with its first error has no increase: what a page is about is 0 from the start.
        known = {(number, xid) for number in self._devices for xid in SEVERE_XIDS} | self._xids.keys()
        self._found += [
            ("train_device_xid_errors_total", {"node": node, "device": number, "xid": xid}, self._xids[number, xid])
            for number, xid in sorted(known)
        ]

    def _count_errors(self) -> None:
        numbers = {_address(device): number for number, device in self._devices.items()}
        while self._errors is not None:
            try:
                error = pynvml.nvmlEventSetWait_v2(self._errors, 0)
            except pynvml.NVMLError:
                return  # it says that there is none by a time-out
            # By its handle: a device that is lost does not even tell its name.
            self._xids[numbers.get(_address(error.device), ""), str(error.eventData)] += 1


def _open() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _listen(devices: Iterable[pynvml.c_nvmlDevice_t]) -> pynvml.c_nvmlEventSet_t | None:
    """None: errors cannot be listened to here."""
    try:
        events = pynvml.nvmlEventSetCreate()
    except pynvml.NVMLError:
        return None
    for device in devices:
        # Some kinds cannot.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def _address(device: pynvml.c_nvmlDevice_t) -> int | None:
    return ctypes.cast(device, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _figures(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    """Each by itself: what a kind of device does not tell costs no other figure."""
    for read in (_info, _use, _memory, _heat, _power, _energy, _throttles, _ecc_errors):
        with contextlib.suppress(pynvml.NVMLError):
            yield from read(device)


def _info(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    labels = {"uuid": _text(pynvml.nvmlDeviceGetUUID(device)), "model": _text(pynvml.nvmlDeviceGetName(device))}
    yield "train_device_info", labels, 1.0


def _use(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    yield "train_device_utilization_ratio", {}, pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100


def _memory(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    yield "train_device_memory_used_bytes", {}, float(memory.used)
    yield "train_device_memory_size_bytes", {}, float(memory.total)


def _heat(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    celsius = pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)
    yield "train_device_temperature_celsius", {}, float(celsius)


def _power(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    yield "train_device_power_watts", {}, pynvml.nvmlDeviceGetPowerUsage(device) * MILLI


def _energy(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    yield "train_device_energy_joules_total", {}, pynvml.nvmlDeviceGetTotalEnergyConsumption(device) * MILLI


def _throttles(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(device)
    for why, mask in THROTTLES.items():
        yield "train_device_throttled", {"why": why}, float(bool(reasons & mask))


def _ecc_errors(device: pynvml.c_nvmlDevice_t) -> Iterator[_Value]:
    for kind, number in ECC_ERRORS.items():
        # Of its whole life: a volatile count begins again with the driver, at no moment that a reader knows.
        count = pynvml.nvmlDeviceGetTotalEccErrors(device, number, pynvml.NVML_AGGREGATE_ECC)
        yield "train_device_ecc_errors_total", {"kind": kind}, float(count)
