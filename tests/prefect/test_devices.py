"""Pipelines that compete for devices on a real server: the highest priority first, and nothing is held by the dead."""

from __future__ import annotations

import contextvars
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError, RunStopped
from headway.flows.prefect_api.devices import CountedDevices
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Ledger, read_events

from .conftest import wait_until

PREFIX = "headway:competing:production"
Make = Callable[..., CountedDevices]
HOLDER = """
import sys, time
from pathlib import Path
from headway.flows.console.environment import prepare
prepare()
from headway.flows.prefect_api.devices import CountedDevices
from headway.training.launch.base.stop_request import NEVER
from headway.training.observe.ledger import Ledger
held = CountedDevices(
    slots={"gpus": 4}, priority=0, prefix=sys.argv[1], ledger=Ledger(Path(sys.argv[2])), stop=NEVER
)
held.take()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def limits(service: Any) -> Iterator[Callable[[str], int]]:
    """Four gpus and one tape, and who waits for them; tells how many slots of one are taken."""
    sizes = {"gpus": 4, "tapes": 1, **{f"{each}:waiting:{p}": 9 for each in ("gpus", "tapes") for p in (0, 5)}}
    for name, size in sizes.items():
        service.api("v2/concurrency_limits/", {"name": f"{PREFIX}:{name}", "limit": size})

    def taken(name: str) -> int:
        return int(service.api(f"v2/concurrency_limits/{PREFIX}:{name}")["active_slots"])

    with service.configured():
        yield taken
    for name in sizes:
        service.api(f"v2/concurrency_limits/{PREFIX}:{name}", method="DELETE")


@pytest.fixture
def devices(limits: object, tmp_path: Path) -> Make:
    def make(
        priority: int = 0, stop_at: float = float("inf"), name: str = "ledger", poll_s: float = 0.2, **slots: int
    ) -> CountedDevices:
        return CountedDevices(
            slots=slots,
            priority=priority,
            prefix=PREFIX,
            ledger=Ledger(tmp_path / f"{name}.jsonl"),
            stop=StopRequest(at_unix_s=stop_at, reason="window closed"),
            poll_s=poll_s,
        )

    return make


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    return thread


def test_of_those_who_wait_the_highest_priority_goes_first(
    devices: Make, limits: Callable[[str], int], tmp_path: Path
) -> None:
    first, order = devices(gpus=4), []
    first.take()

    def compete(name: str, each: CountedDevices) -> None:
        each.take()
        order.append(name)
        each.release()

    usual, urgent = devices(0, gpus=1, name="usual"), devices(5, gpus=4)
    threads = [in_thread(lambda: compete("usual", usual))]
    wait_until(lambda: limits("gpus:waiting:0") == 1, 60, "the usual one waits")
    threads.append(in_thread(lambda: compete("urgent", urgent)))
    wait_until(lambda: "a higher priority" in (tmp_path / "usual.jsonl").read_text(), 60, "the usual one knows of it")
    first.release()
    for thread in threads:
        thread.join(120)
    assert order == ["urgent", "usual"]
    assert [limits(name) for name in ("gpus", "gpus:waiting:0", "gpus:waiting:5")] == [0, 0, 0]


def test_who_waits_holds_nothing_of_what_it_needs_besides(devices: Make, limits: Callable[[str], int]) -> None:
    holder = devices(tapes=1)
    holder.take()
    with pytest.raises(RunStopped, match=r"window closed.*waited for 4 gpus and 1 tapes, and .*:tapes has not so many"):
        devices(gpus=4, tapes=1, stop_at=time.time() + 1).take()
    assert [limits(name) for name in ("gpus", "gpus:waiting:0", "tapes:waiting:0")] == [0, 0, 0]
    holder.release()


def test_what_it_waits_for_is_in_the_ledger(devices: Make, tmp_path: Path) -> None:
    holder, late = devices(gpus=1), devices(gpus=4, stop_at=time.time() + 1, name="late")
    holder.take()
    with pytest.raises(RunStopped):
        late.take()
    (message,) = (each for each in read_events(tmp_path / "late.jsonl") if each["event"] == "devices.waiting")
    assert message["message"] == f"waits for 4 gpus: {PREFIX}:gpus has not so many free"
    holder.release()


def test_devices_of_a_killed_holder_come_back(service: Any, devices: Make, tmp_path: Path) -> None:
    """Its lease runs out after a minute; until then it counts, as it should."""
    command = [sys.executable, "-c", HOLDER, PREFIX, str(tmp_path / "killed.jsonl")]
    holder = subprocess.Popen(command, env=service.environment, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    following = devices(gpus=4, stop_at=time.time() + 300, poll_s=2.0)
    following.take()
    following.release()


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"gpu": 1}, f"has no concurrency limit '{PREFIX}:gpu'"),
        ({"gpus": 5}, f"5 gpus are never free: the limit '{PREFIX}:gpus' is 4"),
    ],
)
def test_what_is_never_there_is_refused_by_name(devices: Make, slots: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        devices(**slots).take()
