from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.training.launch.base import process_tree
from headway.training.launch.base.process_tree import (
    cpu_s,
    descendants,
    is_child,
    kill_if,
    process_state,
    processes_with,
    send_signal,
    sweep,
)

pytestmark = pytest.mark.process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_descendants_are_found_through_every_generation_and_the_dead_are_left_out(
    wait_until: Callable[..., object],
) -> None:
    shell = subprocess.Popen(["sh", "-c", "(sleep 600; :) & sleep 601; :"])
    try:
        wait_until(lambda: len(descendants(shell.pid)) == 3)
        assert shell.pid in descendants(os.getpid())
        assert shell.pid not in descendants(shell.pid)
    finally:
        for pid in [shell.pid, *descendants(shell.pid)]:
            send_signal(pid, signal.SIGKILL)
    wait_until(lambda: process_state(shell.pid) == "Z")
    assert shell.pid not in descendants(os.getpid())
    shell.wait()
    assert process_state(shell.pid) == "X"


def test_a_child_is_one_of_its_parents_alone_and_only_while_it_lives(
    sleeper: subprocess.Popen[bytes], wait_until: Callable[..., object]
) -> None:
    assert is_child(sleeper.pid, of=(os.getpid(),)) and is_child(sleeper.pid, of=(1, os.getpid()))
    assert not is_child(sleeper.pid, of=(os.getppid(),)) and not is_child(os.getpid(), of=(os.getpid(),))
    sleeper.kill()
    wait_until(lambda: process_state(sleeper.pid) == "Z")
    assert not is_child(sleeper.pid, of=(os.getpid(),))
    sleeper.wait()
    assert not is_child(sleeper.pid, of=(os.getpid(),))


def test_the_sweep_finds_orphans_in_sessions_of_their_own_and_nobody_else(
    sleeper: subprocess.Popen[bytes], wait_until: Callable[..., object]
) -> None:
    token = secrets.token_hex(8)
    environment = os.environ | {"TOKEN_OF_TEST": token}
    subprocess.run(["sh", "-c", "setsid sleep 600 & setsid sleep 601 & exit 0"], env=environment, check=True)
    wait_until(lambda: len(processes_with("TOKEN_OF_TEST", token)) == 2)

    killed = sweep("TOKEN_OF_TEST", token)

    assert len(killed) == 2
    assert processes_with("TOKEN_OF_TEST", token) == []
    assert sleeper.poll() is None


def test_whoever_one_look_missed_is_ended_by_the_next(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when its parent forked and ended within the look.
    looks: list[list[int]] = [[], [sleeper.pid], [], []]
    monkeypatch.setattr(process_tree, "processes_with", lambda *_: looks.pop(0))
    monkeypatch.setattr(process_tree, "_was_started_with", lambda *_: True)
    assert sweep("TOKEN_OF_TEST", "") == [sleeper.pid]
    assert sleeper.wait() == -signal.SIGKILL and looks == []


def test_a_number_that_has_passed_to_another_process_is_spared(sleeper: subprocess.Popen[bytes]) -> None:
    assert not kill_if(sleeper.pid, lambda: False)
    assert sleeper.poll() is None
    assert kill_if(sleeper.pid, lambda: True)
    assert sleeper.wait() == -signal.SIGKILL
    assert not kill_if(sleeper.pid, lambda: True)


def test_a_process_name_with_brackets_and_blanks_is_read_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "stat").write_text("77 (a) R 1 (b) S 42 77 77 0 -1 0 0 0 0 0 150 50 0 0")
    monkeypatch.setattr(process_tree, "PROC", tmp_path)
    assert process_state(77) == "S"
    assert cpu_s(77) == 200 / os.sysconf("SC_CLK_TCK")
    assert descendants(42) == [77]
