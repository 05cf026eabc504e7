"""A process that runs a user's code gives one answer, whatever that code does, and leaves nothing behind."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from headway.training.launch.base.guest_process import (
    MAX_LINE_CHARACTERS,
    MAX_STDERR_BYTES,
    TOKEN,
    GuestOutcome,
    GuestProcess,
)
from headway.training.launch.base.process_tree import beside_headway, processes_with
from tests.waiting import wait_until

pytestmark = pytest.mark.process

PATIENCE_S = 60.0
PROGRAM = """\
import os, signal, subprocess, sys, time
from headway.training.launch.base.guest_process import answer


def make(question):
    {deed}
    return question.upper()


answer(make)
"""


class Guest:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def outcome(self, deed: str, within_s: float = PATIENCE_S) -> GuestOutcome:
        name = f"guest_{uuid.uuid4().hex}"
        (self.folder / f"{name}.py").write_text(PROGRAM.format(deed=deed))
        guest = GuestProcess(name, "so", os.environ | beside_headway([str(self.folder)]))
        found = guest.outcome(time.monotonic() + within_s)
        assert not processes_with(TOKEN, guest._token), "something outlived it"
        return found


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


@pytest.mark.parametrize(
    "deed",
    [
        "pass",
        "print('so it goes'); os.write(1, b'\\xff\\xfe\\n'); os.write(2, b'\\xff\\xfe\\n')",
        "[os.write(2, b'y' * 1_000_000) for _ in range(50)]",
        "assert sys.stdin.read() == '' and os.read(0, 1) == b''",
        "subprocess.Popen(['sleep', '1000'])",
        "subprocess.Popen(['sleep', '1000'], stdin=-3, stdout=-3, stderr=-3, start_new_session=True)",
        "import threading; threading.Thread(target=time.sleep, args=(1000,)).start()",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork() or time.sleep(1000)",
        "os.setpgid(0, os.getpgid(os.getppid())); os.fork() or time.sleep(1000)",
    ],
)
def test_it_answers_once_and_is_gone_with_all_that_it_started(guest: Guest, deed: str) -> None:
    found = guest.outcome(deed)
    assert (found.code, found.answer) == (0, "SO")


def test_what_ends_without_an_answer_says_how_in_one_printable_line(guest: Guest) -> None:
    found = guest.outcome("os.write(2, b'\\xff\\x1b[31m' + b'x' * 5_000_000); os._exit(3)")
    assert (found.code, found.answer, found.how) == (3, "", "with exit code 3")
    assert len(found.last_words) <= MAX_LINE_CHARACTERS < MAX_STDERR_BYTES and found.last_words.isprintable()
    assert guest.outcome("os.abort()").how == "by signal 6"
    assert "without an answer" in guest.outcome("os._exit(0)").how


def test_a_text_that_is_no_utf_8_is_an_answer(guest: Guest) -> None:
    assert guest.outcome("question = chr(0xD800); return question").answer == "\\ud800"


def test_a_question_is_read_as_it_was_written_whatever_the_locale(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "guest_of_ascii.py").write_text(PROGRAM.format(deed="pass"))
    environment = os.environ | beside_headway([str(tmp_path)]) | {"PYTHONIOENCODING": "ascii"}
    found = GuestProcess("guest_of_ascii", "größe", environment).outcome(time.monotonic() + PATIENCE_S)
    assert found.answer == "GRÖSSE"


def test_what_left_its_group_and_hangs_is_ended_too(guest: Guest) -> None:
    assert guest.outcome("os.setpgid(0, os.getpgid(os.getppid())); time.sleep(1000)", within_s=5.0).code is None


def test_what_hangs_is_ended_at_its_deadline_with_all_that_it_started(guest: Guest, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    deed = "subprocess.Popen(['sleep', '1000'], start_new_session=True); open({!r}, 'w'); time.sleep(1000)"
    name = "guest_that_hangs"
    (tmp_path / f"{name}.py").write_text(PROGRAM.format(deed=deed.format(str(begun))))
    with GuestProcess(name, "so", os.environ | beside_headway([str(tmp_path)])) as hangs:
        wait_until(begun.exists)
        assert len(processes_with(TOKEN, hangs._token)) == 2
        assert hangs.outcome(time.monotonic()).code is None
        assert not processes_with(TOKEN, hangs._token)
