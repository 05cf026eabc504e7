"""What a person is told while it happens."""

from __future__ import annotations

import io
from pathlib import Path

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


def test_a_stage_that_another_process_is_at_has_not_failed() -> None:
    ended = {"event": "stage.launch", "duration_s": 0.0}
    assert notice_line({**ended, "outcome": "RunBusy"}) == "launch     busy       0.00 s"
    assert notice_line({**ended, "outcome": "TrainingFailed"}) == "launch     FAILED     0.00 s"
