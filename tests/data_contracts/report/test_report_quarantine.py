"""The quarantine is counted by rule and shown by name, however long it is."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.quarantine import QuarantinedRow
from headway.data_contracts.report.quarantined_rows import MAX_ROWS_OF_RULE, quarantine_section, sample_quarantine


def listed(folder: Path, rows: list[QuarantinedRow]) -> Path:
    path = folder / "quarantine.parquet"
    schema = pa.schema({"path": pa.string(), "row": pa.int64(), "rule_ids": pa.list_(pa.string())})
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema=schema), path)
    return path


@pytest.mark.process
def test_every_row_is_counted_for_every_rule_it_breaks(tmp_path: Path) -> None:
    rows = [QuarantinedRow("a", number, ("low", "odd") if number % 2 else ("low",)) for number in range(200_000)]
    assert sample_quarantine(listed(tmp_path, rows)).num_by_rule == {"low": 200_000, "odd": 100_000}


def test_a_rare_rule_is_shown_though_a_common_one_fills_the_file(tmp_path: Path) -> None:
    rows = [QuarantinedRow("a", number, ("common",)) for number in range(5000)]
    rows.append(QuarantinedRow("z", 7, ("rare",)))
    sample = sample_quarantine(listed(tmp_path, rows))
    assert len(sample.rows) == MAX_ROWS_OF_RULE + 1
    page = quarantine_section(sample, num_quarantined=5001, num_rows=5001, limit_ratio=0.6)
    assert "50 % of all rows" in page
    assert "at most 60 %" in page
    assert re.search(r"<code>z</code></td><td class='row'>7</td>", page)
    assert f"and {5000 - MAX_ROWS_OF_RULE:,} more." in page


def test_nothing_set_aside_is_no_section(tmp_path: Path) -> None:
    sample = sample_quarantine(listed(tmp_path, []))
    assert quarantine_section(sample, num_quarantined=0, num_rows=10, limit_ratio=0.1) == ""
