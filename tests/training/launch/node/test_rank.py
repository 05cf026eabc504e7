"""Ranks as real processes, as torchrun would start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.training.launch.base.process_tree import ALREADY_DEAD, process_state
from headway.training.launch.base.protocol import AttemptFiles, RankMarker
from headway.training.launch.node.rank_process import RankProcess
from headway.training.observe.ledger import read_events
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

TOYS = Path(__file__).parents[1] / "toys"
BLOCKED = """
import contextlib, threading, sys, pathlib
from headway.training.launch.node.rank_process import arm
rank = arm(pathlib.Path(sys.argv[1]))
with rank.outcome(), (rank.expendable() if "expendable" in sys.argv else contextlib.nullcontext()):
    print("armed", flush=True)
    import ctypes
    ctypes.CDLL(None).sleep.restype = None
    while True:
        ctypes.CDLL(None).sleep(600)  # like a collective: the GIL is free, and no Python code runs
"""
AGENT = """
import subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(600)
"""


def toy(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toy_worker", "--run-dir", str(folder), "--steps", "5", "--step-s", "0.01", *arguments],
        env=os.environ | {"PYTHONPATH": str(TOYS)} | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def marker(folder: Path, rank: int = 0) -> RankMarker:
    return AttemptFiles(folder).read_markers()[rank]


@pytest.fixture
def blocked(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKED, str(tmp_path)],
        env=os.environ | {"HEADWAY_STOP_GRACE_S": "0.5", "TORCHELASTIC_RUN_ID": "x"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "armed\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_it_works_by_hand_without_any_launcher(tmp_path: Path) -> None:
    assert toy(tmp_path).returncode == 0
    assert (marker(tmp_path / "by-hand").state, marker(tmp_path / "by-hand").rank) == ("done", 0)


@pytest.fixture
def small_disk(new_disk) -> Path:
    return new_disk(64 << 10)


FULL = '{"kind": "fill the disk", "step": 2}'


def test_a_disk_that_fills_up_ends_no_rank_and_how_it_ended_is_told_all_the_same(small_disk: Path) -> None:
    done = toy(small_disk, "--trouble", FULL)
    assert done.returncode == 0, done.stderr
    assert marker(small_disk / "by-hand").state == "done"


def test_what_a_full_disk_makes_fail_is_told_as_a_full_disk(small_disk: Path) -> None:
    toy(small_disk, "--trouble", FULL, "--last-words", "unexpected pos 64 vs 0")
    told = marker(small_disk / "by-hand")
    assert (told.state, told.failure.cause, told.failure.exit_code, told.failure.retryable) == (
        "failed",
        "environment",
        8,
        False,
    )
    assert told.failure.what.startswith("no space left") and told.failure.where == str(small_disk / "by-hand")


def test_it_writes_where_the_supervisor_said_and_under_its_own_rank(tmp_path: Path) -> None:
    told = tmp_path / "attempts" / "007"
    told.mkdir(parents=True)
    toy(tmp_path, RANK="2", WORLD_SIZE="3", HEADWAY_ATTEMPT_DIR=str(told), HEADWAY_ATTEMPT="7", HEADWAY_NODE="1")
    assert (marker(told, 2).state, marker(told, 2).node) == ("done", 1)
    step = next(event for event in read_events(told / "ledger" / "rank-2.jsonl") if event["event"] == "step")
    assert (step["rank"], step["attempt"]) == (2, 7)


@pytest.mark.parametrize(
    ("trouble", "code", "state", "cause"),
    [
        ("stop", 75, "stopped", "stopped"),
        ("contract", 4, "failed", "contract"),
        ("not finite", 6, "failed", "training"),
        ("raise", 1, "failed", "training"),
        ("memory", 1, "failed", "oom"),
    ],
)
def test_every_end_is_written_down_with_its_cause(
    tmp_path: Path, trouble: str, code: int, state: str, cause: str
) -> None:
    ended = toy(tmp_path, "--trouble", json.dumps({"kind": trouble, "step": 3}))
    last_word = marker(tmp_path / "by-hand")
    assert (ended.returncode, last_word.state, last_word.failure.cause) == (code, state, cause)


def test_an_error_of_ours_is_one_line_on_stderr_and_a_foreign_one_keeps_its_traceback(tmp_path: Path) -> None:
    ours = toy(tmp_path, "--trouble", '{"kind": "contract", "step": 3}').stderr
    assert ours == "ContractViolation: here: no receipt. Validate first.\n"
    foreign = toy(tmp_path, "--trouble", '{"kind": "raise", "step": 3}').stderr
    assert "Traceback" in foreign and "the dog ate it" in foreign


def test_a_blocked_rank_ends_itself_when_its_grace_is_over(tmp_path: Path, blocked: subprocess.Popen[str]) -> None:
    blocked.send_signal(signal.SIGTERM)
    assert blocked.wait(DEADLINE_S) == 143
    assert marker(tmp_path).state == "failed"
    assert "within 0.5 s of SIGTERM" in marker(tmp_path).failure.what


def test_a_rank_with_nothing_to_keep_ends_in_good_order_at_once_even_while_blocked(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKED, str(tmp_path), "expendable"],
        env=os.environ | {"HEADWAY_STOP_GRACE_S": "600"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "armed\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 75
    assert (marker(tmp_path).state, marker(tmp_path).failure.cause) == ("stopped", "stopped")
    assert "rank.stopped" in [event["event"] for event in read_events(AttemptFiles(tmp_path).rank_spool(0))]


def test_what_is_worth_keeping_amid_the_rest_hears_of_a_stop_and_the_rest_ends_there(tmp_path: Path) -> None:
    rank = RankProcess(tmp_path)
    with pytest.raises(RunStopped), rank.expendable():
        with rank.worth_keeping():
            rank.on_sigterm(signal.SIGTERM, None)
            rank.leave_if_expendable()
            assert rank.stop_requested
        with rank.expendable():
            pytest.fail("it began something new")


def test_a_blocked_rank_writes_its_stacks_when_asked(
    tmp_path: Path, blocked: subprocess.Popen[str], wait_until: Callable[..., object]
) -> None:
    blocked.send_signal(signal.SIGUSR2)
    stacks = AttemptFiles(tmp_path).stacks(0)
    wait_until(lambda: "_stand_watch" in stacks.read_text() and "<module>" in stacks.read_text())
    assert blocked.poll() is None


def test_a_rank_dies_with_its_agent_even_while_blocked(tmp_path: Path, wait_until: Callable[..., object]) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, BLOCKED, str(tmp_path)],
        env=os.environ | {"TORCHELASTIC_RUN_ID": "x"},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: AttemptFiles(tmp_path).read_markers())
        rank_pid = marker(tmp_path).pid
    finally:
        agent.kill()
        agent.wait()
    wait_until(lambda: process_state(rank_pid) in ALREADY_DEAD)


def test_a_rank_whose_agent_is_gone_before_it_is_armed_does_not_start(tmp_path: Path) -> None:
    # Its parent is the guard: it was adopted.
    environment = {"TORCHELASTIC_RUN_ID": "x", "HEADWAY_GUARD_PID": str(os.getpid())}
    assert toy(tmp_path, **environment).returncode == 137
    assert not (tmp_path / "by-hand").exists()


def test_arming_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import headway.training.launch.node.rank_process;"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    # Isolated from the editable install's own finder, which site has imported before.
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['headway']"
