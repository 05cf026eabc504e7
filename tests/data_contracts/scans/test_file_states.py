"""What stays is not counted again, and a receipt is the same whether anything was remembered or not."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import ValidationContext, validate
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.scans import tallies as tallies_module
from headway.data_contracts.scans.file_states import FileStates, load_states, save_states, states_path
from headway.data_contracts.scans.rows_database import RowsDatabase
from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import ContractReceipt, Snapshot, StoredFile
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.rows_files import RowsFiles
from tests.data_contracts.local_rows import of_parquet

NUM_FILES, ROWS_PER_FILE = 100, 50
CONTRACT = parse_contract(
    """
name: events
version: 1.0.0
quarantine_limit_ratio: 0.05
columns:
  id: {type: int64, unique: true}
  score: {type: double, nullable: true, min: 0}
  label: {type: string, in: [a, b]}
rules:
  - {id: usable, column: score, max: 1e300, action: quarantine}
  - {id: small, column: id, max: 4000, max_failed_ratio: 0.5, severity: warning}
statistics:
  - {id: mean-score, column: score, statistic: mean, max: 1e299}
  - {id: least, column: score, statistic: min, min: 0}
freshness:
  - {id: fresh, column: at, max_age_h: 24}
drift:
  - {id: steady, columns: [score, label, id], max_psi: 0.2}
""".replace("columns:\n  id", "columns:\n  at: {type: 'timestamp[us]'}\n  id", 1),
    where="events.yaml",
)


def write_file(path: Path, number: int, *, shift: float = 0.0) -> Path:
    ids = list(range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE))
    # Values whose sum depends on the order in which doubles are added.
    scores = [None if i % 9 == 0 else shift + (0.1 * i if i % 2 else 1e17 / (i + 1)) for i in ids]
    rows = {"at": pa.array(ids, pa.timestamp("us")), "id": ids, "score": scores, "label": ["ab"[i % 2] for i in ids]}
    pq.write_table(pa.table(rows), path, row_group_size=20)
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "data").mkdir()
    return [write_file(tmp_path / "data" / f"{number:03}.parquet", number) for number in range(NUM_FILES)]


def judge(
    files: RowsFiles, scratch: Path, states: FileStates | None = None, contract: Contract = CONTRACT
) -> ContractReceipt:
    num_rows = sum(file.num_rows for file in files.files)
    snapshot = Snapshot(format="parquet", columns=dict(files.columns), num_rows=num_rows, files=files.files)
    stored = StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32)
    excluded = scratch / "left-out.parquet"
    given = ValidationContext(states=states)
    return validate(contract, stored, snapshot, files, scratch, quarantine_file=excluded, surroundings=given)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Places of the files that were read one by one or together."""
    places: set[int] = set()
    original = RowsDatabase.rows_of

    def spying(self: RowsDatabase, asked: Any, *, is_quarantined: bool) -> str:
        places.update(asked)
        return original(self, asked, is_quarantined=is_quarantined)

    monkeypatch.setattr(RowsDatabase, "rows_of", spying)
    yield places


@pytest.mark.process
def test_one_changed_file_of_a_hundred_is_the_only_one_counted_again(
    paths: list[Path], tmp_path: Path, read: set[int]
) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    files = of_parquet(*paths)
    states = load_states(workspace, files, "basis")
    judge(files, tmp_path, states)
    assert read == set(range(NUM_FILES))
    save_states(workspace, states)
    write_file(paths[42], 42, shift=0.25)
    changed = of_parquet(*paths)
    again = load_states(workspace, changed, "basis")
    read.clear()
    receipt = judge(changed, tmp_path, again)
    assert read == {42}
    assert again.num_known_files == NUM_FILES - 1
    assert receipt.to_bytes() == judge(changed, tmp_path).to_bytes()


@pytest.mark.process
@pytest.mark.parametrize("large_file_rows", [1, 100_000])
def test_a_receipt_has_the_same_bytes_with_states_and_without(
    paths: list[Path], tmp_path: Path, large_file_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies_module, "LARGE_FILE_ROWS", large_file_rows)
    write_file(paths[7], 7, shift=2e300)  # its rows are quarantined
    files = of_parquet(*paths[:20])
    contract = CONTRACT.model_copy(update={"quarantine_limit_ratio": 0.1})
    plain = judge(files, tmp_path, contract=contract)
    states = FileStates(files, "basis")
    assert judge(files, tmp_path, states, contract).to_bytes() == plain.to_bytes()
    remembered = FileStates(files, "basis", json.loads(states.to_bytes())["files"])
    assert judge(files, tmp_path, remembered, contract).to_bytes() == plain.to_bytes()
    assert plain.num_quarantined == 44
    assert plain.passed


def test_another_rule_is_counted_in_all_files_and_the_others_are_not(
    paths: list[Path], tmp_path: Path, read: set[int]
) -> None:
    files = of_parquet(*paths[:5])
    states = FileStates(files, "basis")
    judge(files, tmp_path, states)
    read.clear()
    label = CONTRACT.columns["label"].model_copy(update={"max_length": 1})
    longer = CONTRACT.model_copy(update={"columns": {**CONTRACT.columns, "label": label}})
    assert judge(files, tmp_path, states, longer).passed
    assert read == set(range(5))
    read.clear()
    judge(files, tmp_path, states, longer)
    assert read == set()


@pytest.mark.parametrize("damage", ["flip", "cut", "basis", "version", "no files", "not json"])
def test_a_state_that_cannot_be_trusted_is_no_state(paths: list[Path], tmp_path: Path, damage: str) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    files = of_parquet(*paths[:2])
    states = FileStates(files, "basis")
    judge(files, tmp_path, states)
    save_states(workspace, states)
    assert load_states(workspace, files, "basis").num_known_files == 2
    where = workspace.local_path(states_path("basis"))
    data = bytearray(where.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "not json":
        data = bytearray(b"\xff")
    else:
        changes = {"basis": {"basis": "other"}, "version": {"format_version": 2}, "no files": {"files": None}}
        value = json.loads(data) | changes[damage]
        del value["sha256"]
        data = bytearray(canonical_json({**value, "sha256": sha256_of(value)}))
    where.chmod(0o644)
    where.write_bytes(data)
    assert load_states(workspace, files, "basis").num_known_files == 0


def test_a_file_that_moves_to_another_folder_of_a_partition_is_another_file(paths: list[Path]) -> None:
    files = of_parquet(*paths[:2])
    here, there = (dataclasses.replace(files, partitions={"day": (day, "1")}) for day in ("1", "2"))
    states = FileStates(here, "basis")
    states.keep(0, "figure", 5)
    states.keep(1, "figure", 6)
    moved = FileStates(there, "basis", json.loads(states.to_bytes())["files"])
    assert moved.known("figure") == {1: 6}


@pytest.mark.parametrize("value", [3, 0.1, -0.0, math.inf, -math.inf, math.nan, {-1: 5, 7: 2}])
def test_a_figure_comes_back_to_the_bit(paths: list[Path], tmp_path: Path, value: Any) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    files = of_parquet(paths[0])
    states = FileStates(files, "basis")
    states.keep(0, "figure", value)
    save_states(workspace, states)
    assert repr(load_states(workspace, files, "basis").known("figure")[0]) == repr(value)


def test_a_file_whose_columns_are_read_as_other_types_is_another_file(paths: list[Path]) -> None:
    files = of_parquet(paths[0])
    states = FileStates(files, "basis")
    states.keep(0, "figure", 5)
    known = json.loads(states.to_bytes())["files"]
    assert FileStates(files, "basis", known).known("figure") == {0: 5}
    others = dataclasses.replace(files, columns={**files.columns, "label": "int64"})
    assert FileStates(others, "basis", known).known("figure") == {}


def test_figures_of_rules_that_are_gone_are_forgotten(paths: list[Path]) -> None:
    files = of_parquet(paths[0])
    states = FileStates(files, "basis")
    states.keep(0, "old", 1)
    later = FileStates(files, "basis", json.loads(states.to_bytes())["files"])
    later.keep(0, "new", 2)
    (figures,) = json.loads(later.to_bytes())["files"].values()
    assert figures == {"new": 2}


def test_a_column_that_only_some_files_have_is_counted_file_by_file(tmp_path: Path) -> None:
    text = "name: a\nversion: 1.0.0\ncolumns:\n  id: {type: int64}\n  extra: {type: int64, nullable: true, max: 5}\n"
    contract = parse_contract(text, where="a.yaml")
    first, second = tmp_path / "1.parquet", tmp_path / "2.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), first)
    pq.write_table(pa.table({"id": [3], "extra": [9]}), second)
    one, other = of_parquet(first), of_parquet(second)
    files = RowsFiles(
        columns=other.columns, files=(*one.files, *other.files), local=(*one.local, *other.local), may_lack=True
    )
    states = FileStates(files, "basis")
    receipt = judge(files, tmp_path, states, contract)
    assert {each.rule_id for each in receipt.verdicts if not each.passed} == {"extra.between"}
    assert receipt.to_bytes() == judge(files, tmp_path, None, contract).to_bytes()
    # A file without the column is read alone, too.
    fresh = FileStates(
        files, "basis", {k: v for k, v in json.loads(states.to_bytes())["files"].items() if "9" not in v}
    )
    assert judge(files, tmp_path, fresh, contract).to_bytes() == receipt.to_bytes()
