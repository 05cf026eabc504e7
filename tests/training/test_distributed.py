"""Which device a rank computes on."""

from __future__ import annotations

import pytest
import torch

from training.distributed import choose_device


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
