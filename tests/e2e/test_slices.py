"""Slices by columns of the source, from the pipeline file to the card, without a byte of the shards made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.documents import EvaluationReport


@pytest.mark.long
def test_slices_that_a_pipeline_file_names_are_in_report_and_card_and_retrain_nothing(project, retrain_here) -> None:
    project.forget_the_registry()
    for report in project.files("documents/evaluation/*.json"):
        report.unlink()
    named = "{bootstrap_resamples: 100, slices: [num_lines, {column: path, folders: 1}]}"
    project.edit("tiny.yaml", "{bootstrap_resamples: 100}", named)
    summary, _ = retrain_here(project)
    assert summary.stages_run == ["evaluate", "register"] and summary.is_champion
    report = EvaluationReport.from_bytes(project.file("documents/evaluation/*.json").read_bytes(), where="")
    by_column: dict[str, int] = {}
    for name, size in report.slice_sizes.items():
        column = name.partition(" = ")[0] if " = " in name else "own"
        by_column[column] = by_column.get(column, 0) + size
    assert by_column == dict.fromkeys(("own", "num_lines", "path/1"), report.num_examples)
    own = {name: interval for name, interval in report.slices.items() if " = " not in name}
    for name, interval in own.items():
        if name != "(others)":
            assert report.slices[f"path/1 = {name}"] == interval, "the folder that evaluation finds by itself"
    card = Path(summary.reports["card"].removeprefix("file://")).read_text()
    assert "| num_lines = " in card and f"| path/1 = {next(iter(own))} |" in card
