"""What a rank of the sandbox does to itself: once, where it was planned, and nothing without a plan."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import select
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.flows.config.pipeline_spec import SHIPPED
from headway.flows.drill import sandbox
from headway.training.launch.base.channel import Listener
from headway.training.launch.base.failure import cause_of
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.base.protocol import AttemptFiles, StorePlace

HEARS_WITHIN_S = 0.3


@pytest.fixture
def network() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drill_network", SHIPPED / "deployments/drill/network.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name, value in {"RANK": "1", "HEADWAY_ATTEMPT": "1", "DRILL_SANDBOX": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def plan(folder: Path, **fault: Any) -> None:
    (folder / sandbox.PLAN).write_text(json.dumps({"rank": 1, "attempt": 1, "after": 2, "how": "nan", **fault}))


def test_both_sides_of_a_plan_speak_of_the_same_files(network: ModuleType) -> None:
    assert (network.SANDBOX, network.PLAN, network.PLANTED) == (sandbox.SANDBOX, sandbox.PLAN, sandbox.PLANTED)


def test_a_loss_is_spoilt_once_at_the_micro_batch_that_was_planned(network: ModuleType, rank: Path) -> None:
    plan(rank)
    factors = [network.fault().at_micro_batch(32) for _ in range(5)]
    assert [math.isnan(factor) for factor in factors] == [False, False, True, False, False]
    planted = json.loads((rank / sandbox.PLANTED).read_text())
    assert (planted["rank"], planted["attempt"], planted["micro_batch"]) == (1, 1, 2)


@pytest.mark.parametrize("other", [{"rank": 0}, {"attempt": 2}, None])
def test_another_rank_another_attempt_and_no_plan_suffer_nothing(
    network: ModuleType, rank: Path, other: dict[str, int] | None
) -> None:
    if other is not None:
        plan(rank, **other)
    assert [network.fault().at_micro_batch(32) for _ in range(5)] == [1.0] * 5
    assert not (rank / sandbox.PLANTED).exists()


def test_one_bit_of_a_complete_checkpoint_is_flipped_wherever_it_lies(network: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000020"
    folder.mkdir()
    for place in (0.0, 0.25, 0.5, 0.75, 0.999):
        before = {"manifest.json": b"{}", "tensors": bytes(6)}
        for name, data in before.items():
            (folder / name).write_bytes(data)
        told = network.flip_bit(folder, place)
        after = {name: (folder / name).read_bytes() for name in before}
        differing = [
            (name, 8 * byte + bit)
            for name in before
            for byte in range(len(before[name]))
            for bit in range(8)
            if (before[name][byte] ^ after[name][byte]) >> bit & 1
        ]
        assert differing == [(told["file"], told["bit"])]


def test_want_of_memory_is_the_allocators_own_error_and_is_over_with_it(network: ModuleType) -> None:
    import torch

    with pytest.raises(RuntimeError) as error:
        network.run_out_of_memory()
    assert cause_of(error.value) == "oom"
    assert len(torch.empty(96 << 20, dtype=torch.uint8)) == 96 << 20


@pytest.mark.process
def test_what_is_sent_to_a_muted_process_is_dropped_and_nobody_is_told(network: ModuleType) -> None:
    reading, writing = os.pipe()
    with socket.create_server((LOOPBACK, 0)) as door, socket.create_connection(door.getsockname()) as peer:
        near, _ = door.accept()
        with near:
            # In a process of its own, for its sockets are muted for good.
            if (child := os.fork()) == 0:
                heard = True
                with contextlib.suppress(BaseException):
                    network.mute()
                    os.write(writing, b"m")
                    heard = bool(select.select([near], [], [], HEARS_WITHIN_S)[0])
                os._exit(heard)
            os.close(writing)
            assert os.read(reading, 1) == b"m", "files and pipes are left as they are"
            peer.sendall(b"word")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "it heard something"
    os.close(reading)


def test_a_stranger_is_refused_where_the_store_asks_for_a_key(
    network: ModuleType, rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_ATTEMPT_DIR", str(rank))
    assert network.knock() == {"was_refused": None}, "no store, and so nobody who could refuse"
    listener = Listener(LOOPBACK, 0, key := "k" * 64, lambda *_: None)
    listener.start()
    AttemptFiles(rank).write_store(StorePlace(address=LOOPBACK, port=listener.port, key=key))
    assert network.knock()["was_refused"] is True
    monkeypatch.setattr(network.secrets, "token_hex", lambda _: key)
    assert network.knock()["was_refused"] is False, "who has the key is let in"
    listener.close()
