"""Which device a rank computes on, and how long it waits for its peers."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from headway.training.launch.base import protocol
from headway.training.launch.base.ports import free_port
from headway.training.ranks.communication import Collectives, gang_levels
from headway.training.ranks.distributed import choose_device, init_process_group
from tests.waiting import DEADLINE_S
from tests.warm_programs import Program

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("num_devices", "environment", "device"),
    [
        (0, {}, "cpu"),
        (1, {}, "cuda:0"),
        (8, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, "cuda:3"),
        (8, {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "HEADWAY_NODE": "1"}, "cuda:3"),
        (8, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "HEADWAY_NODE": "1", "HEADWAY_RANKS_HERE": "4"}, "cuda:3"),
        (2, {"LOCAL_WORLD_SIZE": "1", "HEADWAY_NODE": "1", "HEADWAY_RANKS_HERE": "2"}, "cuda:1"),
        (1, {"LOCAL_WORLD_SIZE": "1", "HEADWAY_NODE": "0", "HEADWAY_RANKS_HERE": "2"}, "cpu"),
    ],
)
def test_no_two_ranks_of_a_machine_share_a_gpu(monkeypatch: pytest.MonkeyPatch, num_devices, environment, device):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "HEADWAY_NODE", "HEADWAY_RANKS_HERE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    assert str(choose_device()) == device


TIMEOUT_S = 10


def ended(of_rank: Callable[[int, int], None], world_size: int) -> list[int]:
    """Exit codes of ranks that do this. What other tests left in this process, threads above all, is none of theirs."""
    port = free_port()
    code = f"from {__name__} import {of_rank.__name__}; {of_rank.__name__}({{}}, {port})"
    ranks = [Program([sys.executable, "-c", code.format(rank)], cwd=REPOSITORY) for rank in range(world_size)]
    try:
        return [process.wait(DEADLINE_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def come_late_to_meetings(rank: int, port: int) -> None:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    # Long enough to find each other on a machine that is busy.
    os.environ[protocol.COLLECTIVE_TIMEOUT_S] = str(TIMEOUT_S)
    with init_process_group(rank=rank, world_size=2) as process_group:
        if rank == 1:
            time.sleep(TIMEOUT_S + 2)
        assert process_group.gather(torch.tensor([[rank]])).tolist() == [[0], [1]]
        assert process_group.from_leader(bytes([rank])) == bytes([0])


@pytest.mark.process
def test_outside_of_steps_ranks_wait_for_one_that_reads_or_writes_for_longer_than_a_collective_may_take():
    assert ended(come_late_to_meetings, 2) == [0, 0]


def miss_a_collective(rank: int, port: int) -> None:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place | {"GLOO_SOCKET_IFNAME": "lo", protocol.COLLECTIVE_TIMEOUT_S: str(TIMEOUT_S)})
    torch.set_num_threads(1)
    with contextlib.suppress(_OfNoUse), init_process_group(rank=rank, world_size=2) as process_group:
        meeting = torch.distributed.distributed_c10d._get_default_store()
        if rank == 0:
            collectives = Collectives(process_group)
            with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
                collectives.wait(collectives.all_reduce(torch.ones(2)))
            meeting.set("has failed", b"")
        meeting.wait(["has failed"], timedelta(seconds=DEADLINE_S))
        raise _OfNoUse


class _OfNoUse(RuntimeError):
    """The group is, once a collective failed."""


@pytest.mark.process
def test_a_rank_that_waits_within_a_step_for_longer_than_it_was_told_fails():
    assert ended(miss_a_collective, 2) == [0, 0]


def meet_on_unequal_hosts(rank: int, port: int) -> None:
    """The first host has two ranks, and the others one."""
    place = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"LOCAL_WORLD_SIZE": "2" if rank < 2 else "1", protocol.COLLECTIVE_TIMEOUT_S: str(TIMEOUT_S)}
    os.environ.update(place | {"GLOO_SOCKET_IFNAME": "lo"})
    torch.set_num_threads(1)
    with init_process_group(rank=rank, world_size=4) as process_group:
        assert process_group.levels == ()
        values = torch.ones(4)
        (level,) = gang_levels(process_group)
        level.wait(level.all_reduce(values))
        assert values.tolist() == [4.0] * 4


@pytest.mark.long
def test_ranks_that_see_other_levels_than_their_peers_meet_on_one():
    assert ended(meet_on_unequal_hosts, 4) == [0] * 4
