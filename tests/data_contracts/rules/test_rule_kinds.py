"""Conformance: a fault of every kind, planted in the middle of a file or across files, is found and no other."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.engine.validation import ValidationContext, validate
from headway.data_contracts.rules.contract import Contract, parse_contract
from headway.data_contracts.scans.leakage import PipelineSplit
from headway.data_contracts.store.documents import ContractReceipt, Snapshot, StoredFile
from headway.data_contracts.tables.rows_files import RowsFiles
from tests.data_contracts.local_rows import of_parquet

pytestmark = pytest.mark.process

CONTRACT_FILE = StoredFile(path="contracts/events.yaml", size_bytes=1, sha256="ab" * 32)
NUM_FILES, ROWS_PER_FILE = 3, 1000
NUM_ROWS = NUM_FILES * ROWS_PER_FILE
SECRET = "ada.lovelace@analytical.example"
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TEXT = """
name: events
version: 1.0.0
rows: {min: 2900, max: 3100}
columns:
  id: {type: int64, unique: true, min: 0}
  user: {type: string, pattern: 'u[0-9]+', max_length: 8}
  day: {type: 'date32[day]', min: 2026-01-01, max: 2026-12-31}
  at: {type: 'timestamp[us, tz=UTC]', min: '2026-01-01T00:00:00+00:00'}
  price: {type: 'decimal128(10, 2)', min: '0.01', max: '999.99'}
  score: {type: double, min: 0, max: 1}
  ratio: {type: float, nullable: true, finite: false, max: 1}
  tokens: {type: 'list<int32>', min_length: 1, max_length: 8, elements: {min: 0, max: 511}}
  weights: {type: 'list<double>', elements: {max: 1}}
  label: {type: string, in: [cat, dog, owl]}
  kind: {type: string}
  note: {type: string, no_pii: [email, credit-card, private-key]}
  raw: {type: binary, max_length: 4}
  split: {type: string, in: [train, eval]}
keys:
  - {id: session, columns: [user, at]}
ordering:
  - {id: in-time, column: at, within: all}
  - {id: by-id, column: id, strict: true}
balance:
  - {id: classes, column: label, min_share: 0.2, max_share: 0.5}
splits: {column: split}
leakage:
  - {id: users-apart, columns: [user]}
  - {id: notes-apart, columns: [note], compare: normalized}
statistics:
  - {id: mean-score, column: score, statistic: mean, min: 0.49, max: 0.51}
  - {id: spread, column: score, statistic: stdev, min: 0.2, max: 0.4}
  - {id: most, column: id, statistic: max, max: 2999}
"""
CONTRACT = parse_contract(TEXT, where="events.yaml")
TYPES = {
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "price": pa.decimal128(10, 2),
    "ratio": pa.float32(),
    "tokens": pa.list_(pa.int32()),
    "weights": pa.list_(pa.float64()),
    "raw": pa.binary(),
}
Rows = dict[str, list[Any]]
Fault = tuple[str, int, Any]
"""Column, row of the whole set, and value."""
MIDDLE, LAST = 1501, 2999
ONE = "1 of 3,000 rows break it"


def clean_rows(num_rows: int = NUM_ROWS) -> Rows:
    numbers = range(num_rows)
    return {
        "id": list(numbers),
        "user": [f"u{number}" for number in numbers],
        "day": [datetime.date(2026, 1, 1) + datetime.timedelta(days=number % 365) for number in numbers],
        "at": [START + datetime.timedelta(minutes=number) for number in numbers],
        "price": [Decimal(1 + number % 90000).scaleb(-2) for number in numbers],
        "score": [number / (num_rows - 1) for number in numbers],
        "ratio": [None if number % 7 == 0 else 0.5 for number in numbers],
        "tokens": [[number % 512] * (1 + number % 8) for number in numbers],
        "weights": [[] if number % 5 == 0 else [0.25, 0.5] for number in numbers],
        "label": [("cat", "dog", "owl")[number % 3] for number in numbers],
        "kind": [("a", "b")[number % 2] for number in numbers],
        "note": [f"note number {number}" for number in numbers],
        "raw": [b"1234"[: number % 5] for number in numbers],
        "split": ["eval" if number % 10 == 0 else "train" for number in numbers],
    }


def write_files(folder: Path, rows: Rows, num_files: int = NUM_FILES) -> RowsFiles:
    folder.mkdir(exist_ok=True)
    table = pa.table({name: pa.array(values, TYPES.get(name)) for name, values in rows.items()})
    step = -(-table.num_rows // num_files)
    paths = []
    for number in range(num_files):
        paths.append(folder / f"part-{number:03}.parquet")
        pq.write_table(table.slice(number * step, step), paths[-1], row_group_size=300)
    return of_parquet(*paths)


def snapshot_of(files: RowsFiles) -> Snapshot:
    num_rows = sum(file.num_rows for file in files.files)
    return Snapshot(format="parquet", columns=dict(files.columns), num_rows=num_rows, files=files.files)


def judge_files(files: RowsFiles, contract: Contract, scratch: Path, **given: Any) -> ContractReceipt:
    excluded = scratch / "left-out.parquet"
    return validate(
        contract,
        CONTRACT_FILE,
        snapshot_of(files),
        files,
        scratch,
        quarantine_file=excluded,
        surroundings=ValidationContext(**given),
    )


Judge = Callable[..., ContractReceipt]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def run(rows: Rows, contract: Contract = CONTRACT, **given: Any) -> ContractReceipt:
        return judge_files(write_files(tmp_path / "data", rows), contract, tmp_path, **given)

    return run


def failures(receipt: ContractReceipt) -> dict[str, str]:
    return {each.rule_id: each.observed for each in receipt.verdicts if not each.passed}


def planted(*faults: Fault) -> Rows:
    rows = clean_rows()
    for column, row, value in faults:
        rows[column][row] = value
    return rows


def test_clean_data_of_every_type_raise_no_alarm(judge: Judge) -> None:
    receipt = judge(clean_rows())
    assert failures(receipt) == {}
    assert receipt.passed


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        pytest.param(
            (
                ("user", MIDDLE, "x1"),
                ("day", MIDDLE, datetime.date(2027, 1, 1)),
                ("price", MIDDLE, Decimal("1000.00")),
                ("score", MIDDLE, math.nan),
                ("ratio", MIDDLE, math.nan),
                ("tokens", MIDDLE, [511, 512, 0]),
                ("weights", MIDDLE, [0.1, math.nan]),
                ("label", MIDDLE, "cow"),
                ("note", MIDDLE, f"write to {SECRET}, please"),
                ("raw", MIDDLE, b"12345"),
                ("split", MIDDLE, None),
            ),
            {
                "user.pattern": ONE,
                "day.between": ONE,
                "price.between": ONE,
                "score.finite": ONE,
                "score.between": ONE,
                "mean-score": "nan",
                "spread": "nan",
                "classes": "4 classes hold 0.03333 % to 33.33 % of 3,000 rows",
                "ratio.between": "1 of 2,571 rows break it",
                "tokens.elements": ONE,
                "weights.elements": ONE,
                "label.one_of": ONE,
                "note.pii.email": ONE,
                "raw.length": ONE,
                "split.not_null": ONE,
            },
            id="one row in the middle of a file",
        ),
        pytest.param(
            (
                ("user", LAST, "u123456789"),
                ("price", LAST, Decimal("0.00")),
                ("tokens", LAST, []),
                ("weights", LAST, [None]),
                ("tokens", MIDDLE, [3, -1]),
                ("note", LAST, "card 4111 1111 1111 1111"),
                ("note", LAST - 1, "card 4111 1111 1111 1112 is none"),
                ("note", MIDDLE, "-----BEGIN RSA PRIVATE KEY-----"),
                ("id", MIDDLE, -1),
            ),
            {
                "user.length": ONE,
                "price.between": ONE,
                "tokens.length": ONE,
                "tokens.elements": ONE,
                "weights.elements": ONE,
                "note.pii.credit-card": ONE,
                "note.pii.private-key": ONE,
                "id.between": ONE,
                "by-id": "1 of 3,000 rows are out of order",
            },
            id="the last row of the last file",
        ),
        pytest.param(
            (("id", LAST, 5), ("user", 2000, "u7"), ("at", 2000, START + datetime.timedelta(minutes=7))),
            {
                "id.unique": "1 of 3,000 rows repeat an earlier value",
                "by-id": "1 of 3,000 rows are out of order",
                "session": "1 of 3,000 rows repeat an earlier key",
                "in-time": "1 of 3,000 rows are out of order",
                "users-apart": "2 of 3,000 rows are shared by two splits or more",
            },
            id="the same key in two files",
        ),
        pytest.param(
            (("note", 2000, "Note;  NUMBER 7!"),),
            {"notes-apart": "2 of 3,000 rows are shared by two splits or more"},
            id="nearly the same text in two splits",
        ),
    ],
)
def test_every_planted_fault_is_found_and_nothing_else(
    judge: Judge, faults: tuple[Fault, ...], expected: Mapping[str, str]
) -> None:
    receipt = judge(planted(*faults))
    assert failures(receipt) == expected
    assert not receipt.passed
    assert SECRET.encode() not in receipt.to_bytes()


def test_a_rule_of_the_whole_set_is_broken_by_files_that_are_sound_alone(judge: Judge) -> None:
    rows = clean_rows()
    rows["label"] = ["cat"] * 1000 + ["dog"] * 1999 + ["owl"]
    rows["at"] = [*rows["at"][1000:], *rows["at"][:1000]]
    found = failures(judge(rows))
    assert found == {
        "classes": "3 classes hold 0.03333 % to 66.63 % of 3,000 rows",
        "in-time": "1 of 3,000 rows are out of order",
    }


def test_a_class_that_the_contract_lists_and_nobody_has_is_a_share_of_nothing(judge: Judge) -> None:
    rows = clean_rows()
    rows["label"] = [("cat", "dog")[number % 2] for number in range(NUM_ROWS)]
    assert failures(judge(rows)) == {"classes": "2 classes hold 0 % to 50 % of 3,000 rows"}
    rows["label"][MIDDLE] = "cow"
    assert failures(judge(rows))["classes"] == "3 classes hold 0 % to 50 % of 3,000 rows"


def test_a_row_that_is_set_aside_breaks_no_rule_of_the_set(judge: Judge) -> None:
    rules = "rules:\n  - {id: private, column: note, no_pii: [email], action: quarantine}\n"
    contract = parse_contract(
        TEXT.replace(", private-key]", "]").replace("no_pii: [email, ", "no_pii: [") + rules, where="e"
    )
    rows = planted(("note", 2000, SECRET), ("user", 2000, "u7"), ("id", 2000, 3), ("at", 2000, START))
    receipt = judge(rows, contract)
    assert failures(receipt) == {}
    assert (receipt.num_rows, receipt.num_quarantined) == (NUM_ROWS - 1, 1)


def test_the_pipelines_own_split_of_a_key_finds_what_leaks(judge: Judge) -> None:
    sql = "splits: {sql: headway_split(user)}"
    contract = parse_contract(TEXT.replace("splits: {column: split}", sql), where="events.yaml")
    rows = planted(("note", 2001, "note number 10"))

    def split(user: str) -> str:
        return "heldout" if user.endswith("0") else "train"

    assert failures(judge(rows, contract, split=PipelineSplit(of_text=split))) == {
        "notes-apart": "2 of 3,000 rows are shared by two splits or more"
    }


def test_by_default_a_rows_split_is_that_of_its_file(judge: Judge) -> None:
    contract = parse_contract(TEXT.replace("splits: {column: split}\n", ""), where="events.yaml")
    rows = planted(("note", 2001, "note number 10"), ("note", 999, "note number 11"))
    split = PipelineSplit(of_text=lambda path: "heldout" if "002" in path else "train")
    found = failures(judge(rows, contract, split=split))
    assert found == {"notes-apart": "2 of 3,000 rows are shared by two splits or more"}


def test_texts_that_share_most_words_leak_and_others_do_not(judge: Judge) -> None:
    words = [f"word{number * number % 101}" for number in range(60)]
    near = [*words[:30], "another", *words[31:]]
    less = [*words[:48], *(f"else{number}" for number in range(12))]
    rows = planted(("note", 10, " ".join(words)), ("note", 11, " ".join(near)), ("note", 12, " ".join(less)))
    text = TEXT.replace("compare: normalized", "compare: similar, min_similarity: 0.7")
    assert failures(judge(rows, parse_contract(text, where="e"))) == {
        "notes-apart": "2 of 3,000 rows are shared by two splits or more"
    }


@pytest.mark.parametrize(
    "template", ["Thank you for your order, it is on its way.", "{0} {0} " + " ".join(map(str, range(60)))]
)
def test_a_text_that_thousands_of_rows_share_leaks_as_any_other(judge: Judge, template: str) -> None:
    """Word for word, or but for a number: no pair of them is too many to be looked at."""
    rows = clean_rows() | {"note": [template.format(number) for number in range(NUM_ROWS)]}
    text = TEXT.replace("compare: normalized", "compare: similar").replace("no_pii", "max_length: 999, no_pii")
    assert failures(judge(rows, parse_contract(text, where="e"))) == {
        "notes-apart": "3,000 of 3,000 rows are shared by two splits or more"
    }


def test_a_rule_that_cannot_be_judged_has_failed_and_spoils_no_other(judge: Judge) -> None:
    rows = clean_rows()
    rows["user"] = list(range(NUM_ROWS))
    found = failures(judge(rows))
    assert found["user.type"] == "int64"
    assert found["user.pattern"] == "it is int64, not string"
    assert set(found) <= {"user.type", "user.pattern", "user.length"}
