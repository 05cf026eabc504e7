"""What a flow tells of the attempts that it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.tasks.stages.training_watch import TrainingWatch
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Ledger


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
