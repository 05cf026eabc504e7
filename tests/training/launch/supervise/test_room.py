"""Room for gangs side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.training.config.launcher_specs import SshSpec
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.supervise import room as module
from headway.training.launch.supervise.room import VISIBLE, Room, Slot, room_for


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors and no GPU."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(module, "usable_processors", lambda: 8.0)
    monkeypatch.setattr(module, "count_gpus", lambda: (0, ""))


@pytest.mark.parametrize(
    ("nodes", "ranks", "threads", "at_most", "num"),
    [(1, 1, 1, 64, 8), (1, 2, 1, 64, 4), (2, 2, 1, 64, 2), (1, 1, 3, 64, 2), (1, 16, 1, 64, 1), (1, 1, 1, 3, 3)],
)
def test_gangs_share_processors_and_each_thread_has_one(
    nodes: int, ranks: int, threads: int, at_most: int, num: int
) -> None:
    room = room_for(LaunchSpec(nodes=nodes, ranks_per_node=ranks), threads, at_most)
    assert len(room.slots) == num and room.is_here


def test_where_there_are_gpus_a_gang_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "count_gpus", lambda: (5, ""))
    room = room_for(LaunchSpec(nodes=1, ranks_per_node=2), 1, 64)
    assert [slot.environment for slot in room.slots] == [{VISIBLE: "0,1"}, {VISIBLE: "2,3"}]
    monkeypatch.setenv(VISIBLE, "GPU-a, GPU-b,,GPU-c")
    room = room_for(LaunchSpec(nodes=1), 1, 64)
    assert [slot.environment[VISIBLE] for slot in room.slots] == ["GPU-a", "GPU-b"], "CUDA stops at what is none"
    # Ranks that find too few take processors, all of them.
    room = room_for(LaunchSpec(nodes=1, ranks_per_node=4), 1, 64)
    assert [slot.environment for slot in room.slots] == [{}, {}]


def test_hosts_are_shared_out_the_best_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = SshSpec.model_validate({"hosts": list("abcdefg")})
    room = room_for(LaunchSpec(launcher="ssh", ssh=ssh, nodes=2), 1, 64)
    shares = [["adg", "be", "cf"], ["a", "b", "c"]]
    found = ["".join(host.host for host in slot.spec.ssh.hosts) for slot in room.slots if slot.spec.ssh is not None]
    assert found == shares[0] and room.fits_one_more({Path("x"): False})
    assert len(room_for(LaunchSpec(launcher="ssh", ssh=ssh, nodes=2), 1, 1).slots) == 1


def test_a_control_group_bounds_processors_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert module.usable_processors(tmp_path) == min(1.5, module.usable_processors(tmp_path / "none"))
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert module.usable_processors(tmp_path) == module.usable_processors(tmp_path / "none") >= 1
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    assert module.available_bytes(tmp_path) == 500_000
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\nactive_file 7\n")
    assert module.available_bytes(tmp_path) == 700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert module.available_bytes(tmp_path) > 10_000_000


def test_memory_is_kept_for_gangs_that_still_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {Path("a"): 100, Path("b"): 40}
    monkeypatch.setattr(module, "_ranks_bytes", sizes.__getitem__)
    monkeypatch.setattr(module, "available_bytes", lambda: 184)
    room = Room(slots=(), whole=Slot(spec=LaunchSpec()), is_here=True)
    assert not room.fits_one_more({Path("a"): False}), "nobody knows yet how large one is"
    assert room.fits_one_more({Path("a"): True}) and room.largest_bytes == 100
    assert not room.fits_one_more({Path("a"): True, Path("b"): False}), "60 of the 184 are to be b's"
    assert room.fits_one_more({})
