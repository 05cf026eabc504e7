"""What a person is told while it happens."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.report.terminal import Terminal, notice_line
from headway.tasks.stages.training_watch import TrainingWatch
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.observe.ledger import Event, Ledger
from tests.tasks.conftest import make_context


def test_each_attempt_that_goes_on_tells_once_from_the_checkpoint_of_which_step(tmp_path: Path) -> None:
    context, stream = make_context(Workspace.create(str(tmp_path / "workspace")), tmp_path), io.StringIO()
    in_prefect: list[Event] = []
    context.ledger.listeners.extend((Terminal(stream), in_prefect.append))
    watch = TrainingWatch(context, tmp_path / "run", {"max_steps": 1000}, lambda event: None)
    for attempt, step in ((1, 0), (2, 1500), (3, 1500)):
        for rank in (0, 1):
            files = AttemptFiles(attempt_folder(tmp_path / "run", attempt))
            with Ledger(files.rank_spool(rank)).span("restore") as fields:
                fields["step"] = step
    with context.ledger.span("restore"):  # of an evaluation, which reads a checkpoint and goes on from none
        watch.poll()
    line = "restore    resumes from the checkpoint of step 1,500"
    assert stream.getvalue().splitlines() == [line, line]
    assert [*filter(None, map(notice_line, in_prefect))] == [line, line]


def test_a_run_whose_checkpoints_were_all_put_aside_is_said_to_begin_anew() -> None:
    restored = {"event": "restore", "outcome": "ok", "step": 0}
    assert notice_line({**restored, "quarantined": 2}) == "restore    no good checkpoint is left: begins anew"
    assert notice_line(restored) == "", "of a first attempt, which expects none"


def test_ranks_that_share_one_machine_are_said_to_be_slow_once_at_the_end_and_those_of_several_at_once() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    slow = {"event": "rank.slow", "what": "rank 1 on a is slow: ..."}
    for _ in range(3):
        terminal({**slow, "one_host": True})
    assert stream.getvalue() == "" == notice_line({**slow, "one_host": True})
    terminal({"event": "stage.launch", "outcome": "ok", "duration_s": 2.0})
    first, made = stream.getvalue().splitlines()
    assert first == "slow       3 times a rank kept others of its machine waiting" and made.startswith("launch")
    terminal({**slow, "one_host": False})
    assert stream.getvalue().splitlines()[2:] == ["slow       rank 1 on a is slow: ..."]


def test_a_federated_round_is_told_of_where_an_answer_was_refused() -> None:
    event = {"event": "federated.round", "step": 8, "what": ""}
    assert notice_line(event) == ""
    assert notice_line({**event, "what": "a.csv"}).split() == ["round", "a.csv"]


def test_a_stage_that_another_process_is_at_has_not_failed() -> None:
    ended = {"event": "stage.launch", "duration_s": 0.0}
    assert notice_line({**ended, "outcome": "RunBusy"}) == "launch     busy       0.00 s"
    assert notice_line({**ended, "outcome": "TrainingFailed"}) == "launch     FAILED     0.00 s"


class Screen(io.StringIO):
    """A terminal, as far as what is written to it asks for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines, self._at = [""], 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for control, up, written in re.findall(r"(\x1b\[(\d*)[AJK]|\r|\n)|([^\x1b\r\n]+)", text):
            self._take(control, int(up or 0), written)
        return len(text)

    def _take(self, control: str, up: int, written: str) -> None:
        if control == "\n":
            self._at += 1
            self.lines += [""] * (self._at == len(self.lines))
        elif control.endswith("A"):
            self._at -= up
        elif control.endswith("J"):
            self.lines[self._at :] = [""]
        elif control.endswith("K") or control == "\r":
            self.lines[self._at] = ""
        else:
            self.lines[self._at] += written


def test_the_trials_of_a_search_are_a_table_below_all_lines_and_gone_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("headway.flows.report.terminal.TABLE_EVERY_S", 0.0)
    screen = Screen()
    terminal = Terminal(screen)
    terminal({"event": "stage.shard", "outcome": "ok", "duration_s": 1.0})
    for number, rate in ((1, 0.5), (2, 0.01), (3, 0.1)):
        settings, name = {"optimizer.lr": rate}, f"trial {number}"
        terminal({"event": "trial", "message": f"{number}   to step 40", "trial": name, "settings": settings})
        step = {"step": 7, "max_steps": 400, "loss": 1.5, "lr": rate, "duration_s": 0.1, "sync_s": 0.0, "tokens": 1}
        terminal({"event": "step", "trial": name, **step})
    shard, *begun, header, first, _, third, end = screen.lines
    assert shard.startswith("shard") and [line.split()[:2] for line in begun] == [["trial", str(n)] for n in (1, 2, 3)]
    assert header.split() == ["trial", "optimizer.lr"] and end == ""
    assert first.split() == ["1", "0.5", *["step", "7", "of", "400,", "loss", "1.5"]] and third.startswith("3")
    terminal({"event": "trial", "message": "3 failed for good: no memory", "trial": "trial 3", "cause": "oom"})
    ranked = {"step": 40, "trials": [2, 1], "values": [0.25, 1.25], "promoted": [2], "greater_is_better": False}
    terminal({"event": "rung", "message": "step 40 of 400: 2 trials", **ranked})
    *above, header, first, second, third, end = screen.lines
    assert len(above) == 6 and above[-1] == "rung       step 40 of 400: 2 trials"
    assert header.split() == ["trial", "optimizer.lr", "at", "40"]
    assert [line.split() for line in (first, second)] == [["2", "0.01", "0.2500", "goes", "on"], ["1", "0.5", "1.2500"]]
    assert third.split() == ["3", "0.1", "failed", "(oom)"]
    terminal({"event": "stage.verify", "outcome": "ok", "duration_s": 1.0})
    assert screen.lines[:6] == above and screen.lines[6].startswith("verify") and screen.lines[7:] == [""]


def test_a_table_of_many_trials_has_the_best_and_no_line_that_a_terminal_would_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    terminal = Terminal(screen)
    numbers = list(range(1, 31))
    for number in numbers:
        settings = {"recipe.model.width": number, "optimizer.learning": "\x1b[2J" + "x" * 50}
        terminal({"event": "trial", "message": "", "trial": f"trial {number}", "settings": settings})
    ranked = {"step": 40, "trials": numbers, "values": [float(each) for each in numbers], "promoted": []}
    terminal({"event": "rung", "message": "", **ranked, "greater_is_better": True})
    *table, more, end = screen.lines[-13:]
    assert [line.split()[0] for line in table[1:]] == [str(each) for each in range(30, 20, -1)]
    assert (more, end) == ("and 20 more trials", "") and max(map(len, screen.lines)) < 40
