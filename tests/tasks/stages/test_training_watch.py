"""What a flow tells of the attempts that it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.flows.report.terminal import step_line
from headway.tasks.stages.training_watch import Pace, TrainingWatch
from headway.training.config.shapes import GAUSSIAN_NATS, TabularNumberShape
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Event, Ledger


@pytest.mark.parametrize(
    ("joins_in", "ended", "told"),
    [(True, [1], [3, 4]), (False, [1], []), (True, [], [3, 4]), (True, [2], []), (True, [1, 2], [])],
)
def test_who_joins_a_detached_run_tells_the_attempt_that_goes_on_and_none_that_has_ended_or_lost_its_owner(
    context, tmp_path: Path, joins_in: bool, ended: list[int], told: list[int]
) -> None:
    records = AttemptRecords(tmp_path)
    for number, steps in ((1, (1, 2)), (2, (3, 4))):
        records.begin(AttemptRecord(attempt=number, scope="one"))
        spool = Ledger(AttemptFiles(attempt_folder(tmp_path, number)).rank_spool(0))
        for step in steps:
            spool.event("step", step=step)
    for number in ended:
        records.end(AttemptRecord(attempt=number, scope="one", end_unix_s=1.0))
    shipped: list[int] = []

    watch = TrainingWatch(
        context, tmp_path, {"max_steps": 9}, lambda event: shipped.append(event["step"]), joins_in=joins_in
    )

    assert watch.poll() == (told[-1] if told else None)
    assert shipped == told


def test_the_progress_says_loss_rate_and_when_it_ends_with_what_was_waited_between_steps() -> None:
    pace = Pace()
    step = {"event": "step", "loss": 0.25, "tokens": 64, "duration_s": 1.0}
    first = pace.line({**step, "step": 1, "unix_s": 0.0}, 121, "examples")
    assert first == "step 1 of 121, loss 0.25, 64 examples/s, ends in 2 min 0 s"
    slower = pace.line({**step, "step": 2, "unix_s": 10.0}, 121, "examples")
    assert "34 examples/s" in slower and "ends in 3 min 46 s" in slower, "a tenth of the eleven seconds"
    assert pace.line({**step, "step": 121, "unix_s": 11.0}, 121, "examples").endswith("examples/s"), "nothing is left"


def test_people_see_a_numbers_loss_as_rmse_in_its_own_unit_and_the_ranks_ledger_keeps_the_loss(
    context, tmp_path: Path
) -> None:
    shape = TabularNumberShape(num_numeric=1, cardinalities=(), mean=5.0, deviation=10.0)
    nats = 0.5 * 0.3**2 + GAUSSIAN_NATS  # off by 3 of the label's unit
    spool = AttemptFiles(attempt_folder(tmp_path, 1)).rank_spool(0)
    step = {"step": 1, "loss": nats, "lr": 0.1, "tokens": 64, "duration_s": 1.0, "sync_s": 0.0}
    relayed: list[Event] = []
    context.ledger.listeners.append(relayed.append)
    shipped: list[Event] = []
    watch = TrainingWatch(context, tmp_path, {"max_steps": 9}, shipped.append, shape=shape)
    Ledger(spool).event("step", **step)
    watch.poll()
    assert shipped[0]["rmse"] == pytest.approx(3.0) and relayed[0]["rmse"] == shipped[0]["rmse"]
    assert "rmse 3 " in step_line(relayed[0], 64.0, 8.0) and "loss" not in step_line(relayed[0], 64.0, 8.0)
    assert Pace().line(relayed[0], 9, "examples").startswith("step 1 of 9, rmse 3.0000, ")
    assert "rmse" not in spool.read_text()
