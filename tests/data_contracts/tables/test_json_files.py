"""JSON lines come out as they were written, or the line that cannot be read is named and never quoted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables import json_files
from headway.data_contracts.tables.json_files import blocks, json_batches, json_columns

SECRET = "hunter2"
Row = dict[str, Any]


def write(folder: Path, data: str | bytes, name: str = "a.jsonl") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def rows(path: Path, columns: dict[str, str] | None = None) -> list[Row]:
    known = columns or json_columns(path, path.name, {})
    return [row for batch in json_batches(path, path.name, known) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "null"), "int64"),
        (("1", "2.5"), "double"),
        (("true", "false"), "bool"),
        (('"x"', '""'), "string"),
        (('"2026-01-01T00:00:00"', '"2026-01-01T00:00:00.123"'), "string"),
        (('"2026-01-01T00:00:00"', '"soon"'), "string"),
        (("[]", "[1, 2]"), "list<int64>"),
        (("[1]", "[1.5]"), "list<double>"),
    ],
)
@pytest.mark.parametrize("block_bytes", [8, 1 << 20])
def test_a_type_is_the_narrowest_that_all_values_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: tuple[str, str], kind: str, block_bytes: int
) -> None:
    monkeypatch.setattr(json_files, "BLOCK_BYTES", block_bytes)
    for ordered in (values, values[::-1]):
        path = write(tmp_path, "".join(f'{{"c": {value}}}\n' for value in ordered))
        assert json_columns(path, "a.jsonl", {}) == {"c": kind}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (f'{{"c": 1}}\n{{"c": "{SECRET}"}}\n', r"a\.jsonl, line 2: column `c`: holds int64 in one part and string"),
        ('{"c": {"d": 1}}\n', r"a\.jsonl: column `c`: structs"),
        ('{"c": [[1]]}\n', r"column `c`: lists of lists"),
        (f'{{"c": 1}}\n{SECRET}\n', r"a\.jsonl, line 2: the line is not one JSON value"),
        (
            '{"c": 1}\n[1]\n',
            r"a\.jsonl, line 2: the line is an array and not an object: each row is an object on a line of its own",
        ),
        ('{"c": null}\n', r"column `c` holds no value"),
        ('{"c": 1, "C": 2}\n', r"column `C`: there is `c` already"),
        (b'{"c": "\xff"}\n', r"a\.jsonl, line 1: the line is not UTF-8"),
        ('{"c": 1', r"a\.jsonl, line 1: the line is not one JSON value"),
    ],
)
def test_columns_that_cannot_be_are_named_by_line(tmp_path: Path, data: str | bytes, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as raised:
        json_columns(write(tmp_path, data), "a.jsonl", {})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (f'{{"n": "{SECRET}"}}', r"column `n`: the value is no int32"),
        ('{"n": 1.5}', r"column `n`: the value is no int32"),
        ('{"n": 99999999999}', r"column `n`: the value is no int32"),
        (f'{{"{SECRET}x": 1}}', r"the key `hunter2x` is none of the columns"),
        (SECRET, r"the line is not one JSON value"),
        ('{"n": 1, "n": 2}', r"the line has a key twice"),
        ('{"d": "2026-13-01"}', r"column `d`: the value is no date32\[day\]"),
        ('{"t": [1]}', r"column `t`: the value is no fixed_size_list<int16>\[2\]"),
        ('{"t": [1, 99999]}', r"column `t`: the value is no fixed_size_list<int16>\[2\]"),
        ('{"n": 1', r"the line is not one JSON value"),
        ("null", "the line is not an object"),
        (" null: 3", "the line is not one JSON value"),
        ('{"n": 1} null', "the line is not one JSON value"),
        ('{"n": 1} {"n": 2}', "the line is not one JSON value"),
        ('{"n":\n1}', "the line is not one JSON value"),
    ],
)
def test_a_fault_in_the_middle_is_named_by_line(tmp_path: Path, line: str, problem: str) -> None:
    columns = {"n": "int32", "d": "date32[day]", "t": "fixed_size_list<int16>[2]"}
    good = '{"n": 1, "d": "2026-01-01", "t": [1, 2]}\n'
    path = write(tmp_path, good * 1000 + "\n" + line + "\n" + good * 1000)
    with pytest.raises(DataError, match=rf"^a\.jsonl, line 1,002: {problem}") as raised:
        rows(path, columns)
    assert SECRET not in str(raised.value).replace("hunter2x", "")


@pytest.mark.parametrize("odd", ['{"n": 1} {"n": 2}', "null", '{"n": 1}{"n": 2}null', '{"n":\n1}'])
def test_each_line_is_one_row_whatever_stands_on_it(tmp_path: Path, odd: str) -> None:
    """Rows are left out by their numbers: one more for a line before would leave out a good one, and keep the bad."""
    path = write(tmp_path, f'\n{odd}\n{{"n": 3}}\n{{"n": "x"}}\n{{"n": 4}}\n')
    bad: list[tuple[int, int, str]] = []
    batches = json_batches(path, path.name, {"n": "int64"}, lambda *each: bad.append(each))
    found = [row["n"] for batch in batches for row in batch.to_pylist()]
    num_odd = odd.count("\n") + 1
    assert found == [None] * num_odd + [3, None, 4]
    assert bad == [*((row, row + 2, "") for row in range(num_odd)), (num_odd + 1, num_odd + 3, "n")]
    assert json_columns(path, path.name, {}, lambda *_: None) == {"n": "int64"}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert rows(write(tmp_path, '\ufeff{"n": 1}\n{"n": 2}\n')) == [{"n": 1}, {"n": 2}]


def test_bytes_that_are_no_text_are_refused_even_where_the_columns_are_known(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"s": "x"}\n{"s": "\xff"}\n')
    with pytest.raises(DataError, match=r"^a\.jsonl, line 2: the line is not UTF-8"):
        rows(path, {"s": "string"})


VALUES = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.characters(codec="utf-8")),
    "bool": st.booleans(),
    "list<int64>": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    "date32[day]": st.dates().map(str),
    "fixed_size_list<int32>[2]": st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2),
}


@pytest.mark.process  # for what it takes of the processor
@given(
    table=st.lists(
        st.fixed_dictionaries({}, optional={kind: st.none() | each for kind, each in VALUES.items()}), max_size=12
    ),
    block_bytes=st.sampled_from([16, 300, 4 << 20]),
)
@settings(max_examples=150)
def test_any_value_comes_back_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, table: list[Row], block_bytes: int
) -> None:
    path = write(tmp_path_factory.getbasetemp(), "".join(json.dumps(row) + "\n" for row in table))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_files, "BLOCK_BYTES", block_bytes)
        found = rows(path, {kind: kind for kind in VALUES})
    shown = [row | {"date32[day]": row["date32[day]"] and str(row["date32[day]"])} for row in found]
    assert shown == [dict.fromkeys(VALUES) | row for row in table]


def test_blocks_are_whole_lines_with_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "BLOCK_BYTES", 4)
    path = write(tmp_path, "1\n22\n\n\n333333333\n4")
    assert [tuple(block) for block in blocks(path, "a")] == [
        (1, b"1\n"),
        (2, b"22\n\n\n"),
        (5, b"333333333\n"),
        (6, b"4"),
    ]


def test_a_line_that_never_ends_is_refused_within_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(json_files, "MAX_LINE_BYTES", 1000)
    path = write(tmp_path, '{"a": 1}\n{"a": "' + "x" * 5000)
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: a line is longer than 1,000 bytes"):
        rows(path)


def test_compressed_lines_are_lines(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}\n' * 3)
    assert rows(write(tmp_path, whole, "a.jsonl.gz")) == [{"a": 1}] * 3
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: the file is damaged"):
        rows(write(tmp_path, whole[:-4], "a.jsonl.gz"))
