"""RAPL's counters, in a folder as the kernel shows them: what they count once, over their new beginnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.flows.monitoring.package_energy import PackageEnergy
from headway.flows.monitoring.samples import Samples

LARGEST_UJ = 262_143_328_850
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for zone, name in ZONES.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text(f"{LARGEST_UJ}\n")
        draw(tmp_path, zone, 1000)
    return tmp_path


def draw(powercap: Path, zone: str, counter_uj: int) -> None:
    (powercap / zone / "energy_uj").write_text(f"{counter_uj}\n")


def test_packages_and_their_memory_count_once_and_from_the_first_look(powercap: Path) -> None:
    energy = PackageEnergy(powercap)
    assert energy.look() == {"package-0": 0, "package-0 dram": 0, "package-1": 0}
    draw(powercap, "intel-rapl:0", 5_001_000)
    draw(powercap, "intel-rapl:0:1", 2_001_000)
    assert energy.look() == {"package-0": 5, "package-0 dram": 2, "package-1": 0}


def test_a_counter_that_begins_again_loses_nothing(powercap: Path) -> None:
    energy = PackageEnergy(powercap)
    draw(powercap, "intel-rapl:1", LARGEST_UJ - 999_999)
    energy.look()
    draw(powercap, "intel-rapl:1", 2_000_000)
    assert energy.look()["package-1"] == 3
    draw(powercap, "intel-rapl:1", 3_000_000)
    assert energy.look()["package-1"] == 4


@pytest.mark.parametrize("broken", ["energy_uj", "max_energy_range_uj", "name"])
@pytest.mark.parametrize("how", ["gone", "no number"])
def test_a_zone_that_cannot_be_read_is_left_out(powercap: Path, broken: str, how: str) -> None:
    file = powercap / "intel-rapl:1" / broken
    file.unlink() if how == "gone" else file.write_text("?\n")
    assert set(PackageEnergy(powercap).look()) == {"package-0", "package-0 dram"}


def test_a_machine_without_rapl_says_nothing(tmp_path: Path) -> None:
    samples = Samples()
    PackageEnergy(tmp_path / "absent").fill(samples)
    assert not [family for family in samples.families() if family.samples]


def test_what_was_drawn_is_a_counter_of_the_node(powercap: Path) -> None:
    samples = Samples()
    PackageEnergy(powercap).fill(samples)
    (family,) = [family for family in samples.families() if family.samples]
    assert family.name == "train_node_energy_joules"
    assert {sample.labels["zone"] for sample in family.samples} == {"package-0", "package-0 dram", "package-1"}


def test_each_die_of_a_package_counts_and_two_zones_of_one_name_are_added_up(powercap: Path) -> None:
    (powercap / "intel-rapl:1" / "name").write_text("package-0-die-1\n")
    (powercap / "intel-rapl:2" / "name").write_text("package-0\n")
    draw(powercap, "intel-rapl:2", 9_000_000)
    energy = PackageEnergy(powercap)
    energy.look()
    draw(powercap, "intel-rapl:0", 1_001_000)
    draw(powercap, "intel-rapl:1", 2_001_000)
    draw(powercap, "intel-rapl:2", 12_000_000)
    assert energy.look() == {"package-0": 4, "package-0-die-1": 2, "package-0 dram": 0}
