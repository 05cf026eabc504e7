"""Planted faults are found, and clean data raise no alarm."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import validate
from headway.data_contracts.rules import contract as contract_module
from headway.data_contracts.rules.contract import load_contract, parse_contract
from headway.data_contracts.sources.reading import SourceSpec, rows_files, take_snapshot
from headway.data_contracts.tables.digest_cache import DigestCache
from tests.data_contracts.engine.validation.conftest import (
    CONTRACT,
    CONTRACT_FILE,
    MIDDLE,
    NUM_ROWS,
    TEXT,
    Validate,
    clean_columns,
    failures,
    plant,
    snapshot_of,
    verdict,
)
from tests.data_contracts.local_rows import listed_rows, of_parquet

SHIPPED = Path(contract_module.__file__).parents[1] / "contracts" / "python-sources.yaml"


def is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def test_clean_data_raise_no_alarm(judge: Validate) -> None:
    receipt = judge()
    assert failures(receipt) == {}
    assert receipt.passed
    assert receipt.num_rows == NUM_ROWS
    assert (receipt.quarantine, receipt.num_quarantined) == (None, 0)


ONE_ROW = "1 of 3,000 rows break it"


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (
            {"path": "part/x", "size_bytes": 101, "score": None, "label": "ugly", "ratio": 1.5},
            {
                "path.pattern": ONE_ROW,
                "size_bytes.between": ONE_ROW,
                "score.not_null": ONE_ROW,
                "label.one_of": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        (
            {"path": "part/123\nx", "size_bytes": 0, "score": -0.001, "label": "good!", "ratio": math.nan},
            {
                "path.pattern": ONE_ROW,
                "size_bytes.between": ONE_ROW,
                "score.between": ONE_ROW,
                "label.one_of": ONE_ROW,
                "label.length": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        (
            {"size_bytes": None, "score": math.inf, "label": None, "ratio": math.inf},
            {
                "size_bytes.not_null": ONE_ROW,
                "score.finite": ONE_ROW,
                "mean-score": "inf",
                "label.not_null": ONE_ROW,
                "ratio.between": "1 of 2,571 rows break it",
            },
        ),
        ({"size_bytes": 1, "score": 0.0, "ratio": -math.inf}, {}),
    ],
)
def test_every_fault_planted_in_a_row_is_found_and_counted_and_nothing_else(
    judge: Validate, faults: dict[str, Any], expected: dict[str, str]
) -> None:
    columns = clean_columns()
    for column, value in faults.items():
        columns[column][MIDDLE] = value
    receipt = judge(columns)
    found = failures(receipt)
    assert found == expected
    assert receipt.passed is not bool(expected)


def test_a_pattern_is_re2_from_the_contract_to_the_verdict(judge: Validate) -> None:
    contract = parse_contract(
        TEXT.replace("max_length: 4", r"pattern: '\p{L}+', severity: warning"), where="events.yaml"
    )
    assert failures(judge(contract=contract)) == {}
    assert failures(judge(plant("label", "g00d"), contract))["label.pattern"] == ONE_ROW


def test_nan_is_not_taken_for_a_number_above_the_bound(judge: Validate) -> None:
    found = failures(judge(plant("score", math.nan)))
    assert found["score.finite"] == "1 of 3,000 rows break it"
    assert found["score.between"] == "1 of 3,000 rows break it"
    assert found["mean-score"] == "nan"


def test_a_value_that_occurs_twice_far_apart_is_found(judge: Validate) -> None:
    columns = clean_columns()
    columns["path"][2999] = columns["path"][0]
    assert failures(judge(columns))["path.unique"] == "1 of 3,000 rows repeat an earlier value"


def test_a_mean_outside_its_bounds_is_found(judge: Validate) -> None:
    columns = clean_columns()
    columns["score"] = [0.7] * NUM_ROWS
    receipt = judge(columns)
    assert failures(receipt) == {"mean-score": "0.7", "median-score": "outside the bounds"}


def test_too_few_rows_are_refused(judge: Validate) -> None:
    columns = {name: values[:100] for name, values in clean_columns().items()}
    assert failures(judge(columns))["rows"] == "100 rows"


def test_a_table_without_rows_is_refused_without_a_crash(judge: Validate) -> None:
    rows = pa.table(clean_columns()).slice(0, 0)
    receipt = judge(table=rows)
    assert not receipt.passed
    assert failures(receipt)["rows"] == "0 rows"


def test_a_warning_refuses_nothing_but_is_said(judge: Validate) -> None:
    columns = clean_columns()
    columns["label"] = ["bad"] * NUM_ROWS
    receipt = judge(columns)
    assert failures(receipt) == {"mostly-good": "3,000 of 3,000 rows break it"}
    assert receipt.passed


def test_a_tolerated_share_passes_and_is_counted(judge: Validate) -> None:
    assert verdict(judge(), "mostly-good").observed == "750 of 3,000 rows break it"


def test_a_missing_column_fails_everything_that_speaks_of_it_and_is_told_as_missing(judge: Validate) -> None:
    columns = clean_columns()
    del columns["score"]
    receipt = judge(columns)
    assert not receipt.passed
    found = failures(receipt)
    assert found["columns"] == "missing: score"
    assert found["score.type"] == "the column is missing"
    speaks_of_it = {each.rule_id for each in judge().verdicts if "score" in each.rule_id}
    assert speaks_of_it <= set(found)
    assert {found[rule_id] for rule_id in speaks_of_it} == {"the column is missing"}


def test_an_extra_column_is_refused_unless_allowed(judge: Validate) -> None:
    columns = clean_columns() | {"extra": list(range(NUM_ROWS))}
    assert failures(judge(columns)) == {"columns": "not in the contract: extra"}
    allowing = CONTRACT.model_copy(update={"extra_columns": True})
    assert failures(judge(columns, allowing)) == {}


@pytest.mark.parametrize("wrong", [pa.int32(), pa.float64(), pa.string()])
def test_a_column_of_another_type_is_refused_and_explains_what_could_not_be_judged(
    judge: Validate, wrong: pa.DataType
) -> None:
    rows = pa.table(clean_columns())
    position = rows.schema.get_field_index("size_bytes")
    receipt = judge(table=rows.set_column(position, "size_bytes", rows["size_bytes"].cast(wrong)))
    assert not receipt.passed
    found = failures(receipt)
    assert found["size_bytes.type"] == str(wrong)
    assert not [message for message in found.values() if "could not be evaluated" in message]
    if wrong == pa.string():
        assert found["size_bytes.between"] == "it is string, not int64"


@pytest.mark.parametrize(("change", "observed"), [({"sha256": "cd" * 32}, "2 differ"), ({"num_rows": 7}, "3 differ")])
def test_rows_that_are_not_the_snapshots_files_are_refused(
    tmp_path: Path, change: dict[str, Any], observed: str
) -> None:
    pq.write_table(pa.table(clean_columns()), tmp_path / "rows.parquet")
    rows = of_parquet(tmp_path / "rows.parquet")
    snapshot = snapshot_of(rows)
    other = dataclasses.replace(rows, files=(rows.files[0].model_copy(update=change),))
    excluded = tmp_path / "left-out.parquet"
    receipt = validate(CONTRACT, CONTRACT_FILE, snapshot, other, tmp_path, quarantine_file=excluded)
    assert failures(receipt) == {"snapshot": observed}
    assert not receipt.passed


def test_the_same_inputs_give_the_same_bytes(judge: Validate) -> None:
    assert judge(plant("label", "ugly")).to_bytes() == judge(plant("label", "ugly")).to_bytes()


@pytest.mark.process
def test_the_standard_library_keeps_its_contract(tmp_path: Path) -> None:
    spec = SourceSpec(uri="python:stdlib", include=("**/*.py",), exclude=("site-packages/**", "**/__pycache__/**"))
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "cache.json"))
    excluded = tmp_path / "left-out.parquet"
    with rows_files(spec, snapshot, tmp_path, base=tmp_path) as rows:
        receipt = validate(load_contract(SHIPPED), CONTRACT_FILE, snapshot, rows, tmp_path, quarantine_file=excluded)
    assert failures(receipt) == {}
    assert receipt.passed
    no_text = {file.path for file in snapshot.files if not is_utf8(Path(os.__file__).parent / file.path)}
    listed = {row.path for row in listed_rows(excluded, 1000)} if excluded.exists() else set()
    assert no_text <= listed, "a distribution may leave out the library's own tests, where these files are"
    assert receipt.num_rows == len(snapshot.files) - receipt.num_quarantined
