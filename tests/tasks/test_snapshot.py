"""What is told of the source's files."""

from __future__ import annotations

from pathlib import Path

from data_contracts.sources import SourceSpec
from tasks.snapshot import snapshot
from training.ledger import Event


def test_one_file_of_one_row_is_told_in_the_singular_and_more_in_the_plural(context, tmp_path: Path) -> None:
    told: list[Event] = []
    context.ledger.listeners.append(told.append)
    for name, rows, said in (("one", "x\n1\n", "1 row of 1 column"), ("two", "x,y\n1,2\n3,4\n", "2 rows of 2 columns")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.csv").write_text(rows)
        snapshot.fn(context, SourceSpec(format="csv", uri=str(tmp_path / name), include=["*.csv"]))
        shown = next(str(event["shown"]) for event in reversed(told) if "shown" in event)
        assert shown.startswith("1 file   ") and shown.endswith(said), shown
