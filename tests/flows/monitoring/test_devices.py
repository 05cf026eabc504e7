"""Devices of a machine that has none: NVIDIA's own binding calls a library of ours with NVML's names and layouts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytestmark = pytest.mark.process

LOOKS = """
import sys, time
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from headway.flows.monitoring import devices
from headway.flows.monitoring.samples import Samples

devices.ANSWERS_WITHIN_S = 0.2
figures = devices.DeviceFigures()
class Look:
    def collect(self):
        samples = Samples()
        figures.fill(samples)
        return samples.families()
registry = CollectorRegistry()
registry.register(Look())
for line in sys.stdin:
    open(sys.argv[1], "w").write(line)
    sys.stdout.write(generate_latest(registry).decode())
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def look(library: Path, tmp_path: Path, *what: str) -> list[dict[str, float]]:
    """The values of each look, by name and labels; before a look the devices do what is said."""
    state = tmp_path / "devices"
    env = os.environ | {"LD_LIBRARY_PATH": str(library), "DEVICES": str(state)}
    program = subprocess.Popen(
        [sys.executable, "-c", LOOKS, state], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdin is not None and program.stdout is not None
        found = []
        for word in what:
            program.stdin.write(word + "\n")
            program.stdin.flush()
            text = ""
            while not text.endswith("# EOF\n"):
                text += program.stdout.readline()
            values = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {name: value for name, value in sample.labels.items() if name != "node"}
                    values[" ".join([sample.name, *(f"{name}={labels[name]}" for name in sorted(labels))])] = (
                        sample.value
                    )
            found.append(values)
        program.stdin.close()
        assert program.wait(30) == 0
    return found


FIRST = {
    'train_device_info device=0 model=A "device" uuid=GPU-0': 1.0,
    "train_device_utilization_ratio device=0": 0.87,
    "train_device_memory_used_bytes device=0": 60.0 * 2**30,
    "train_device_memory_size_bytes device=0": 80.0 * 2**30,
    "train_device_temperature_celsius device=0": 71.0,
    "train_device_power_watts device=0": 412.5,
    "train_device_energy_joules_total device=0": 5.0,
    "train_device_throttled device=0 why=power_cap": 0.0,
    "train_device_throttled device=0 why=power_brake": 0.0,
    "train_device_throttled device=0 why=heat": 0.0,
    "train_device_ecc_errors_total device=0 kind=corrected": 3.0,
    "train_device_ecc_errors_total device=0 kind=uncorrected": 1.0,
}


def test_each_device_is_told_with_what_it_tells_and_errors_are_counted_from_look_to_look(
    library: Path, tmp_path: Path
) -> None:
    idle, hot, later = look(library, tmp_path, "idle", "hot xid", "hot xid")
    of_first = {name: value for name, value in idle.items() if "device=0" in name and "xid" not in name}
    assert of_first == pytest.approx(FIRST)
    of_second = {name.split()[0] for name in idle if "device=1" in name and "xid" not in name}
    assert of_second == {name.split()[0] for name in list(FIRST)[:4]}, "what it does not tell costs nothing else"
    assert idle["train_node_devices_answer"] == 1.0
    assert {value for name, value in idle.items() if "xid" in name} == {0.0}
    assert hot["train_device_throttled device=0 why=heat"] == 1.0
    assert hot["train_device_throttled device=0 why=power_cap"] == 0.0
    assert hot["train_device_xid_errors_total device=0 xid=79"] == 2.0
    assert later["train_device_xid_errors_total device=0 xid=79"] == 2.0


def test_a_driver_that_does_not_answer_is_told_keeps_no_look_waiting_and_is_heard_when_it_does(
    library: Path, tmp_path: Path
) -> None:
    first, hung, still, again = look(library, tmp_path, "idle", "hangs", "hangs", "idle")
    assert len(first) > 10 and len(again) == len(first)
    assert hung == still == {"train_node_devices_answer": 0.0}


def test_a_device_that_fell_off_its_bus_is_counted_and_costs_no_figure_of_another(
    library: Path, tmp_path: Path
) -> None:
    whole, lost = look(library, tmp_path, "idle", "lost xid")
    others = {name: value for name, value in whole.items() if "device=1" in name}
    assert {name: value for name, value in lost.items() if "device=1" in name} == others
    assert {name for name in lost if "device=0" in name and "xid" not in name} == set()
    assert lost["train_device_xid_errors_total device=0 xid=79"] == 2.0, "which is what the page is about"


def test_errors_that_cannot_be_listened_to_cost_no_other_figure(library: Path, tmp_path: Path) -> None:
    (deaf,) = look(library, tmp_path, "deaf")
    assert {name: value for name, value in deaf.items() if "device=0" in name and "xid" not in name} == pytest.approx(
        FIRST
    )


def test_a_machine_without_the_library_has_no_such_figures(tmp_path: Path) -> None:
    assert look(tmp_path / "nothing", tmp_path, "idle") == [{}]
