"""What the command says of itself, and who is asked for what by which word."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headway.data_contracts.store.publication import Workspace
from headway.flows.cli.command_line import PANELS, Warnings, _unexpected, app, command_line
from headway.training.launch.base.run_lock import owning
from headway.training.launch.base.stop_request import requested_stop

RUN = "0123456789abcdef"


def test_the_help_begins_with_what_it_is_for_and_lists_every_command_once_in_the_order_of_need(headway) -> None:
    code, message = headway("--help")
    begins, _, listed = message.partition("Prepare:")
    assert code == 0 and "import" not in begins and "Retrain models" in begins
    names = re.findall(r"^  ([a-z-]+)  ", f"Prepare:{listed}", re.MULTILINE)
    assert names == [name for panel in PANELS.values() for name in panel]
    assert sorted(names) == sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert "75 stopped on request" in listed
    assert "..." not in listed.partition("Exit codes")[0], "what a command is for fits into its line"


def test_a_command_is_read_without_the_others_and_is_the_same_and_all_are_read_where_none_is_named() -> None:
    whole: Any = typer.main.get_command(app)
    in_groups = {"contract", "alerts", "windows", "skip-window", "unskip-window", "open-window"}
    for name, command in whole.commands.items():
        read: Any = command_line(name)
        if name not in in_groups:
            assert set(read.commands) == {name}
        assert [each.name for each in read.commands[name].params] == [each.name for each in command.params]
        assert read.commands[name].help == command.help
    for name in ("", "--help", "no-such-command", "contract"):
        assert set(vars(command_line(name))["commands"]) == set(whole.commands)


def test_the_version_is_that_of_the_installation(headway) -> None:
    assert headway("--version") == (0, f"headway {version('headway')}\n")


WARNS = """
import logging
from headway.flows.cli.command_line import log_warnings
from headway.flows.console.environment import prepare
prepare()
log_warnings()
from prefect.logging.configuration import setup_logging
setup_logging()
for name in ("headway.data_contracts.store.object_store", "headway.tasks.registry.track", "botocore"):
    logging.getLogger(name).warning("%s waits", name)
"""


@pytest.mark.process
def test_what_the_code_warns_of_reaches_the_terminal_beside_prefect_that_keeps_all_other_logs() -> None:
    message = subprocess.run([sys.executable, "-c", WARNS], check=True, capture_output=True, text=True, timeout=300)
    assert message.stderr.splitlines() == [
        "headway: headway.data_contracts.store.object_store waits",
        "headway: headway.tasks.registry.track waits",
    ]


def test_a_warning_is_one_line_and_one_that_cannot_be_shown_hinders_nobody(capsys, monkeypatch) -> None:
    log, warnings = logging.getLogger("of this test"), Warnings(logging.WARNING)
    log.addHandler(warnings)
    log.warning("a store\nwaits")
    assert capsys.readouterr().err == "headway: a store waits\n"
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        log.warning("a store waits")
        with contextlib.suppress(OSError):
            full.close()


@pytest.mark.parametrize("option", ["--why", "--reason"])
def test_a_stop_keeps_its_reason_by_the_word_of_the_other_decisions_and_by_its_old_one(
    project: Path, headway, option: str
) -> None:
    folder = Workspace.create(str(project / "workspace")).local_path(f"runs/{RUN}")
    folder.mkdir(parents=True)
    with owning(folder):
        assert headway("stop", RUN[:4], option, "the night is over")[0] == 0
    assert requested_stop(folder).detail == "the night is over"
    assert "--reason" not in headway("stop", "--help")[1]


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        *((("--version",), 0, closed) for closed in ((0,), (1,), (2,), (0, 1, 2))),
        *((("retrain", "none.yaml"), 2, closed) for closed in ((2,), (0, 1, 2))),
    ],
)
def test_standard_streams_that_are_closed_are_nowhere(
    tmp_path: Path, closed: tuple[int, ...], arguments: tuple[str, ...], code: int
) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    made = subprocess.run(
        [sys.executable, "-m", "headway", *arguments], cwd=tmp_path, capture_output=True, text=True, preexec_fn=close
    )
    assert made.returncode == code, made
    assert "Traceback" not in made.stderr and "defect" not in made.stdout + made.stderr


@pytest.mark.process
def test_output_that_has_no_room_is_trouble_of_the_environment() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "headway", "--version"]
        made = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert made.returncode == 8 and made.stderr.startswith("headway: ") and "no space left" in made.stderr.lower()


@pytest.mark.process
def test_a_file_that_is_larger_than_the_process_may_write_is_trouble_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("a,b\n" + "".join(f"{number},{number % 7}\n" for number in range(9_000)))
    bound = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]
    command = [*bound, sys.executable, "-m", "headway", "contract", "init", "data", "--name", "small"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 8 and "larger than this process may write" in made.stderr and "ulimit -f" in made.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_a_process_that_may_have_no_more_memory_is_no_defect_of_ours(
    capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    assert _unexpected(error) == 8
    assert "may have no more memory" in capsys.readouterr().err


@pytest.mark.process
def test_output_that_nobody_reads_is_an_exit_code_of_ours_and_no_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headway", "explain"]
    made = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (made.returncode, made.stderr) == (8, "")


def test_a_pipe_that_breaks_elsewhere_is_not_silent(headway, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("headway.flows.act.explain.explain", broken)
    code, message = headway("explain")
    assert code == 70 and "BrokenPipeError" in message


@pytest.mark.process
@pytest.mark.parametrize("arguments", [("plan", "a"), ("contract", "init", "a.csv"), ("init",)])
def test_a_current_folder_that_was_removed_is_said(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    def remove() -> None:
        (tmp_path / "gone").mkdir()
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    command = [sys.executable, "-m", "headway", *arguments]
    made = subprocess.run(command, capture_output=True, text=True, preexec_fn=remove)
    assert made.returncode == 8 and "the current folder was removed" in made.stderr


INTERRUPTED_AT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.argv = ["headway", "--version"]
from headway.__main__ import main
main()
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["headway.flows.cli.command_line", "typer", "importlib.metadata"])
def test_an_interrupt_while_the_command_is_being_imported_is_one_line_and_its_exit_code(name: str) -> None:
    made = subprocess.run([sys.executable, "-c", INTERRUPTED_AT.format(name=name)], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (130, "")
    assert made.stderr == "headway: interrupted.\n"
