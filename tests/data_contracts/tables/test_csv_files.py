"""CSV comes out as it was written, or the row that cannot be read is named and never quoted."""

from __future__ import annotations

import csv
import gzip
import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables import open_quotes
from headway.data_contracts.tables.csv_files import csv_batches, csv_columns, csv_names
from headway.data_contracts.tables.source_spec import CsvOptions, SourceSpec
from headway.data_contracts.tables.unparsable_rows import Unparsable, tolerant_batches

SECRET = "hunter2"
Row = dict[str, Any]


def write(folder: Path, data: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def rows(path: Path, options: CsvOptions | None = None, **declared: str) -> list[Row]:
    options = options or CsvOptions()
    columns = csv_columns(path, path.name, options, declared)
    return [row for batch in csv_batches(path, path.name, options, columns) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "-2", ""), "int64"),
        (("1", "2.5", "nan"), "double"),
        (("true", "false"), "bool"),
        (("2026-01-01", ""), "date32[day]"),
        (("2026-01-01 01:02:03", "2026-01-01T01:02:03.5"), "timestamp[us]"),
        (("2026-01-01T01:02:03Z", "2026-01-01T01:02:03+02:00"), "timestamp[us, tz=UTC]"),
        (("007", "1"), "string"),
        (("99999999999999999999", "1"), "string"),
        (("1", "x"), "string"),
        (("2026-01-01", "soon"), "string"),
    ],
)
def test_a_type_is_the_narrowest_that_all_values_have(tmp_path: Path, values: tuple[str, ...], kind: str) -> None:
    path = write(tmp_path, "c,x\n" + "".join(f"{value},-\n" for value in values))
    assert csv_columns(path, "a.csv", CsvOptions(), {})["c"] == kind


def test_the_last_value_of_a_long_file_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "c\n" + "1\n" * 5000 + "x\n")
    assert csv_columns(path, "a.csv", CsvOptions(max_row_bytes=200), {}) == {"c": "string"}


def test_a_column_without_a_value_asks_for_its_type(tmp_path: Path) -> None:
    path = write(tmp_path, "c,d\n,1\n")
    with pytest.raises(DataError, match=r"column `c` holds no value.*source\.column_types: \{c: string\}"):
        rows(path)
    assert rows(path, c="int32") == [{"c": None, "d": 1}]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)


@pytest.mark.process
@given(table=st.lists(st.tuples(TEXTS, TEXTS), max_size=20), block_bytes=st.sampled_from([64, 200, 4 << 20]))
@settings(max_examples=200)
def test_any_text_comes_back_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]], block_bytes: int
) -> None:
    lines = [_quoted(row) for row in (("a", "b"), *table)]
    path = write(tmp_path_factory.getbasetemp(), "".join(lines))
    longest_bytes = max(len(line.encode()) for line in lines)
    found = rows(path, CsvOptions(max_row_bytes=max(block_bytes, longest_bytes)), a="string", b="string")
    assert [(row["a"], row["b"]) for row in found] == table


def _quoted(row: tuple[str, str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        ("a;b\n1;'x;y'\n", {"delimiter": ";", "quote": "'"}, [{"a": 1, "b": "x;y"}]),
        ("1,x\n2,y\n", {"has_header": False}, [{"f0": 1, "f1": "x"}, {"f0": 2, "f1": "y"}]),
        ("1,x\n", {"has_header": False, "column_names": ("n", "s")}, [{"n": 1, "s": "x"}]),
        ("A,B\n1,x\n", {"has_header": False, "column_names": ("n", "s"), "skip_rows": 1}, [{"n": 1, "s": "x"}]),
        ("# note\na\n1\n", {"skip_rows": 1}, [{"a": 1}]),
        ("a,b\n1,NA\n2,3\n", {"nulls": ("NA", "")}, [{"a": 1, "b": None}, {"a": 2, "b": 3}]),
        ('a,b\nx,""\nx,\n', {}, [{"a": "x", "b": ""}, {"a": "x", "b": None}]),
        ("\ufeffa\r\n1\r\n", {}, [{"a": 1}]),
        ('a\n"x\ny"\n\nz', {}, [{"a": "x\ny"}, {"a": "z"}]),
    ],
)
def test_options_say_how_to_read(tmp_path: Path, data: str, options: dict[str, Any], expected: list[Row]) -> None:
    assert rows(write(tmp_path, data), CsvOptions(**options)) == expected


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (f"a,b\n1,2\n{SECRET}\n", r"a\.csv, row 3 .*: the row has 1 values, not 2"),
        (f"a,b\n1,2\n1,2,{SECRET}\n", r"a\.csv, row 3 .*: the row has 3 values, not 2"),
        ("a,b\n" + "1,2\n" * 3000 + f"1,{SECRET}\n", r"a\.csv, row 3,002 .*: column `b`: a value is no int32"),
        ("a,b\n1,99999999999\n", r"a\.csv, row 2 .*: column `b`: a value is no int32.*no message quotes a value"),
        ("", r"a\.csv: the file is empty: not even a header"),
        ("a,a\n1,2\n", r"column `a`: there is `a` already"),
        ("a,\n1,2\n", r"column ``: a column needs a name"),
        (b"a,b\n\xff,2\n", r"a\.csv, row 2 .*: column `a`: a value is not UTF-8"),
        (b"\xff\xfea\n1\n", r"a\.csv: the header is not UTF-8"),
        ('a,b\n"1,2\n' + "x,2\n" * 3000, r"a\.csv, row 2 .*: the row has 1 values, not 2"),
    ],
)
def test_a_fault_is_named_by_file_row_and_column_and_never_quoted(
    tmp_path: Path, data: str | bytes, problem: str
) -> None:
    path = write(tmp_path, data)
    with pytest.raises(DataError, match=problem) as raised:
        rows(path, a="string", b="int32")
    assert SECRET not in str(raised.value)


def test_a_quote_that_is_never_closed_is_found_within_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path, 'a\n"' + "x\n" * 10_000)
    problem = r"a\.csv: a row is longer than 1,000 bytes, or a quote is never closed.*source\.csv\.max_row_bytes"
    with pytest.raises(DataError, match=problem):
        rows(path, CsvOptions(max_row_bytes=1000))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ('a,b\n1,x\n2,"y\n3,z\n4,z\n', 3),
        ('a,b\n1,x\n2,"y', 3),  # cut short
        ('a,b\r\n1,"x\r\ny"\r\n2,"y""\r\n3,z\r\n', 4),
        ('a,b\r1,x\r2,"y\r3,z\r', 3),
        ('a,b\n1,5"\n2,"y""z"\n3,"4,z"x"\n5,"y""\n', 5),
    ],
)
def test_a_quote_that_is_never_closed_takes_no_rows_along(tmp_path: Path, data: str, line: int) -> None:
    columns = {"a": "int64", "b": "string"}
    for name, written in (("a.csv", data.encode()), ("a.csv.gz", gzip.compress(data.encode()))):
        path = write(tmp_path, written, name)
        problem = rf"the quote that opens in line {line} is never closed"
        with pytest.raises(DataError, match=problem):
            list(csv_batches(path, name, CsvOptions(), columns))
        with pytest.raises(DataError, match=problem):
            list(csv_batches(path, name, CsvOptions(), {"a": "int64"}))
        with pytest.raises(DataError, match=problem):
            list(tolerant_batches(SourceSpec(uri=str(tmp_path), format="csv"), path, name, columns, []))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ('a,b\n1,"x\n2,5"y\n3,z\n', (2, 3)),  # a row begins in one value and ends in another
        ('a,b\n0,"u""\nv"\n1,"x\n"2\n3,z\n', (4, 5)),
        ('a,b\r\n1,"x\r\n2,z\r\n3,5"\t y\r\n', (2, 4)),
        ('a,b\r1,"x\r2,5"y\r', (2, 3)),
    ],
)
def test_a_quote_that_another_rows_stray_quote_closes_takes_no_rows_along(
    tmp_path: Path, data: str, lines: tuple[int, int]
) -> None:
    columns = {"a": "int64", "b": "string"}
    problem = rf"the quote that opens in line {lines[0]} is closed in the midst of a value, in line {lines[1]}"
    for name, written, encoding in (
        ("a.csv", data.encode(), "utf-8"),
        ("a.csv.gz", gzip.compress(data.encode()), "utf-8"),
        ("b.csv", data.encode("utf-16"), "utf-16"),
    ):
        path, options = write(tmp_path, written, name), CsvOptions(encoding=encoding)
        with pytest.raises(DataError, match=problem):
            list(csv_batches(path, name, options, columns))
        with pytest.raises(DataError, match=problem):
            list(csv_batches(path, name, options, {"a": "int64"}))
        spec = SourceSpec(uri=str(tmp_path), format="csv", csv=options)
        with pytest.raises(DataError, match=problem):
            list(tolerant_batches(spec, path, name, columns, []))


def test_a_stray_quote_is_found_wherever_the_file_is_cut_into_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_doubtful(path: Path, block_bytes: int) -> bool:
        quotes = open_quotes.QuoteCount(io.BytesIO(path.read_bytes()), CsvOptions())
        while quotes.read(block_bytes):
            pass
        return quotes.may_take_rows

    for block_bytes in (1, 2, 3, 4, 5, 1000):
        monkeypatch.setattr(open_quotes, "CHUNK_BYTES", block_bytes)
        path = write(tmp_path, 'a,b\n1,"x""\ny""" \n2,"x\n3,5"y\n4,z\n')
        assert is_doubtful(path, block_bytes)
        with pytest.raises(DataError, match="opens in line 4 is closed in the midst of a value, in line 5"):
            open_quotes.refuse_lost_rows(path, "a.csv", CsvOptions())
        path = write(tmp_path, '"a","b"\n1,"x""\ny""" \n2,"x\n3,5"\n4,5"z\n')
        assert is_doubtful(path, block_bytes)
        open_quotes.refuse_lost_rows(path, "a.csv", CsvOptions())
        assert not is_doubtful(write(tmp_path, '"a","b"\n"","x""\n""y"""\n"2",""\n3,"z"'), block_bytes)


def test_quotes_within_a_row_and_values_of_several_lines_are_read_as_they_come(tmp_path: Path) -> None:
    path = write(tmp_path, 'a,b\n1,"x"y\n2,"x\ny"\n3,"x\ny" \n4,5" "pipe"\n5,"x"" y"\n')
    assert [row["b"] for row in rows(path)] == ["xy", "x\ny", "x\ny ", '5" "pipe"', 'x" y']


def test_a_mark_of_inches_within_a_value_is_no_quote_that_opens(tmp_path: Path) -> None:
    path = write(tmp_path, 'a "title"\nand a "mark\na,b\n1,5" pipe\n2,"x"",\ny"\n3,"x"y"\n')
    assert [row["b"] for row in rows(path, CsvOptions(skip_rows=2))] == ['5" pipe', 'x",\ny', 'xy"']


def test_an_open_quote_is_found_in_other_encodings_and_below_lines_that_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, 'a "title\na,b\n1,\u2122\n2,"y\n3,z\n'.encode("utf-16"))
    with pytest.raises(DataError, match="the quote that opens in line 4 is never closed"):
        rows(path, CsvOptions(skip_rows=1, encoding="utf-16"))
    path = write(tmp_path, 'a "title\na,b\n1,\u2122\n2,"y"\n3,z\n'.encode("utf-16"))
    assert len(rows(path, CsvOptions(skip_rows=1, encoding="utf-16"))) == 3


def test_a_row_of_ten_megabytes_is_read_and_a_longer_one_where_the_source_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,2\n" + "x" * (10 << 20) + ",3\n")
    columns = {"a": "string", "b": "int64"}

    def lengths(options: CsvOptions) -> list[int]:
        return [len(row["a"]) for batch in csv_batches(path, "a.csv", options, columns) for row in batch.to_pylist()]

    assert lengths(CsvOptions()) == [1, 10 << 20]
    with pytest.raises(DataError, match="a row is longer than 1,048,576 bytes"):
        lengths(CsvOptions(max_row_bytes=1 << 20))


@pytest.mark.parametrize("keep_bytes", [-1, -8, -100, 10, 3])
def test_a_gzip_file_cut_short_is_damaged(tmp_path: Path, keep_bytes: int) -> None:
    whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % (n * 7919) for n in range(20_000)))
    with pytest.raises(DataError, match=r"a\.csv\.gz: the file is (damaged|empty)"):
        rows(write(tmp_path, whole[:keep_bytes], "a.csv.gz"))


def test_a_flipped_bit_in_gzip_is_an_error_and_never_other_rows(tmp_path: Path) -> None:
    data = b"a\n" + b"".join(b"%d\n" % (n * 7919) for n in range(2000))
    whole = gzip.compress(data, mtime=0)
    expected = rows(write(tmp_path, whole, "a.csv.gz"))
    for place in range(12, len(whole), 97):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        try:
            found = rows(write(tmp_path, bytes(flipped), "a.csv.gz"))
        except DataError:
            continue
        assert found == expected


def test_names_are_read_without_the_rows(tmp_path: Path) -> None:
    assert csv_names(write(tmp_path, "a,b\n1,2\n"), "a.csv", CsvOptions()) == ["a", "b"]
    assert csv_names(write(tmp_path, "a,b\n"), "a.csv", CsvOptions()) == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"delimiter": each} for each in (",,", "§", "\n", "\0", '"')),
        *({"quote": ""}, {"skip_rows": -1}, {"skip_rows": 10**20}, {"column_names": ("a",)}, {"separator": ";"}),
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CsvOptions(**wrong)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_other_encodings_and_decimal_commas_are_read_as_what_they_say(tmp_path: Path, encoding: Any) -> None:
    path = write(tmp_path, "straße;preis;menge\nköln;1,5;3\nmünchen;-2;4\n".encode(encoding))
    options = CsvOptions(delimiter=";", encoding=encoding, decimal=",")
    assert csv_columns(path, path.name, options, {}) == {"straße": "string", "preis": "double", "menge": "int64"}
    assert rows(path, options) == [
        {"straße": "köln", "preis": 1.5, "menge": 3},
        {"straße": "münchen", "preis": -2.0, "menge": 4},
    ]


@pytest.mark.parametrize(
    ("encoding", "rest"),
    [("utf-16", b"\x00\xd8a\x00"), ("shift_jis", b"\x81\x20"), ("gb18030", b"\xff\xff"), ("cp1252", b"\x81")],
)
def test_bytes_that_are_no_text_of_the_encoding_are_a_fault_of_the_file(
    tmp_path: Path, encoding: Any, rest: bytes
) -> None:
    path = write(tmp_path, "a\n1\n".encode(encoding) + rest)
    with pytest.raises(DataError, match=rf"^a\.csv: it is not {encoding} to its end\. .*csv\.encoding"):
        rows(path, CsvOptions(encoding=encoding), a="string")


def test_points_beside_decimal_commas_are_no_numbers_and_a_comma_has_one_meaning(tmp_path: Path) -> None:
    path = write(tmp_path, "a;b\n1.234,5;1\n2;1\n")
    assert csv_columns(path, path.name, CsvOptions(delimiter=";", decimal=","), {})["a"] == "string"
    with pytest.raises(ValidationError, match="both a comma"):
        CsvOptions(decimal=",")
    added = {"encoding", "decimal", "timestamp_formats", "thousands", "units"}
    assert CsvOptions().model_dump().keys().isdisjoint(added), "snapshots made before have another key"


@pytest.mark.parametrize(
    "said",
    [
        {"decimal": ",", "thousands": "'"},
        {"decimal": ",", "thousands": " "},
        {"decimal": ",", "thousands": "."},
        {"decimal": ".", "thousands": " "},
    ],
)
def test_a_number_of_another_format_is_none_though_arrow_would_take_it(tmp_path: Path, said: dict[str, Any]) -> None:
    options = CsvOptions(delimiter=";", **said)
    other = "1.2345" if options.decimal == "," else "1,2345"
    path = write(tmp_path, f"a;b\n{other};1\n2;nan\n")
    assert csv_columns(path, path.name, options, {}) == {"a": "string", "b": "double"}
    with pytest.raises(DataError, match="row 2 of all, header included: column `a`: a value is no double"):
        rows(path, options, a="double", b="double")
    spec, bad = SourceSpec(format="csv", uri=".", csv=options), list[Unparsable]()
    (batch,) = tolerant_batches(spec, path, path.name, {"a": "double"}, bad)
    assert (batch.to_pylist(), [each.row for each in bad]) == ([{"a": None}, {"a": 2.0}], [0])


@pytest.mark.parametrize("text", ["0.125", "00.123", "012.345", "-0.500"])
def test_a_zero_begins_no_group_of_thousands(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, f"a\n{text}\n")
    options = CsvOptions(delimiter=";", decimal=",", thousands=".")
    assert csv_columns(path, path.name, options, {}) == {"a": "string"}
    with pytest.raises(DataError, match="column `a`: a value is no double"):
        rows(path, options, a="double")


def test_numbers_are_read_without_thousands_and_units(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "price,share,count,text,mixed\n"
        '"$1,234.50",45 %,"1,234",0012,$1\n'
        '-$7,"3.5%","12,345,678",12,€2\n'
        ',0 %,"1",13,3\n',
    )
    options = CsvOptions(thousands=",", units={"price": "$", "share": "%", "mixed": "$"})
    kinds = {"price": "double", "share": "double", "count": "int64", "text": "string", "mixed": "string"}
    assert csv_columns(path, path.name, options, {}) == kinds, "dollars and euros are not one number"
    found = rows(path, options)
    assert [row["price"] for row in found] == [1234.5, -7.0, None]
    assert [row["share"] for row in found] == [45.0, 3.5, 0.0]
    assert [row["count"] for row in found] == [1234, 12_345_678, 1]
    path.write_text('price\n"1,23"\n')
    assert csv_columns(path, path.name, options, {}) == {"price": "string"}, "a group has three digits"
    with pytest.raises(DataError, match="row 2 of all, header included: column `price`: a value is no double"):
        rows(path, options, price="double")


@pytest.mark.parametrize(
    ("unit", "values", "bad"),
    [
        ("%", ("45.5 %", "0.455", "7%"), 1),
        ("$", ("$5", "5 $", "€5"), 2),
        ("$", ("$5", "$5$", "$6"), 1),
        ("", ("5", "5 %", "6"), 1),
    ],
)
def test_a_number_without_its_columns_unit_or_with_another_is_none(
    tmp_path: Path, unit: str, values: tuple[str, ...], bad: int
) -> None:
    path = write(tmp_path, "a,b\n" + "".join(f"{value},1 %\n" for value in values))
    options = CsvOptions(units={"b": "%"} | ({"a": unit} if unit else {}))
    assert csv_columns(path, path.name, options, {}) == {"a": "string", "b": "int64"}
    with pytest.raises(DataError, match=f"row {bad + 2} of all, header included: column `a`: a value is no double"):
        rows(path, options, a="double")
    found, spec = list[Unparsable](), SourceSpec(format="csv", uri=".", csv=options)
    assert len([*tolerant_batches(spec, path, path.name, {"a": "double", "b": "double"}, found)])
    assert [(each.row, each.column) for each in found] == [(bad, "a")]


def test_nulls_alone_are_numbers_in_every_format(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n" + ",1\n" * 999 + "+$7,1\n")
    options = CsvOptions(thousands="'", units={"a": "$"}, max_row_bytes=100)
    assert [row["a"] for row in rows(path, options)] == [None] * 999 + [7]
    assert [row["a"] for row in rows(write(tmp_path, "a,b\n"), options, a="int64", b="int64")] == []
    with pytest.raises(DataError, match="a value is no int64"):
        rows(write(tmp_path, "a\n+$-7\n"), options, a="int64")


def test_blanks_around_numbers_are_passed_over_whatever_the_format(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n 5, nan\n 7 ,1.5\t\n")
    plain, *others = CsvOptions(), CsvOptions(thousands="'"), CsvOptions(units={"c": "%"})
    expected = str(rows(path, plain, a="int64", b="double"))
    assert [str(rows(path, each, a="int64", b="double")) for each in others] == [expected, expected]
    path.write_text('a\n" 1,234 % "\n')
    assert rows(path, CsvOptions(thousands=",", units={"a": "%"})) == [{"a": 1234}]


def test_dates_are_read_as_the_formats_say_and_as_iso_8601(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "day,at,moment,text\n"
        "31/12/2025,31/12/2025 07:05,2025-12-31T07:05+0200,31/12/2025\n"
        "2026-01-02,02/01/2026 07:05,2026-01-02T00:00Z,13/13/2025\n",
    )
    options = CsvOptions(timestamp_formats=("%d/%m/%Y", "%d/%m/%Y %H:%M"))
    assert csv_columns(path, path.name, options, {}) == {
        **dict.fromkeys(("day", "at"), "timestamp[us]"),
        "moment": "timestamp[us, tz=UTC]",
        "text": "string",
    }
    first, second = rows(path, options)
    assert (first["day"], second["day"]) == (datetime(2025, 12, 31), datetime(2026, 1, 2))
    assert (first["at"], second["at"]) == (datetime(2025, 12, 31, 7, 5), datetime(2026, 1, 2, 7, 5))
    assert first["moment"] == datetime(2025, 12, 31, 5, 5, tzinfo=UTC)
    assert csv_columns(path, path.name, CsvOptions(), {})["day"] == "string"


TEXTS = (
    *("31.12.2025", "1.2.2025", "31.02.2025", "29.02.2024", "29.02.2023", "31.04.2025", "0.1.2025", "32.1.2025"),
    *("1.13.2025", "1.2.25", "1.2.205", "1.2.20255", "+1.2.2025", "1.2.-205", "1.2.2025 ", "1.2. 2025", "1.2.2025\x00"),
    *("1.2.2025 23:59", "1.2.2025 24:00", "1.2.2025 23:60", "1.2.2025 23:59:60", "1.2.2025 23:59:61", "1.2.2025 7:5:0"),
    *("01022025", "31022025", "12/31/2025", "02/30/2025", "1 Feb 2025", "30 Feb 2025", "29 feb 24", ""),
    *("1.2.2025 1:30 PM", "1.2.2025 0:30 PM"),
)
FORMATS = (
    *("%d.%m.%Y", "%d.%m.%y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d%m%Y", "%m/%d/%Y", "%d %b %Y", "%d %b %y"),
    "%d.%m.%Y %I:%M %p",
)


@pytest.mark.parametrize("text_format", FORMATS)
def test_a_moment_is_what_python_takes_for_one_and_no_other_day_of_the_calendar(
    text_format: str, tmp_path: Path
) -> None:
    """strptime of C takes the 31st of February for the 3rd of March."""
    options = CsvOptions(timestamp_formats=(text_format,))
    for text in TEXTS:
        path = write(tmp_path, f'n,day\n1,2026-01-02\n2,"{text}"\n')
        try:
            wanted = datetime.strptime(text, text_format)
        except ValueError:
            assert csv_columns(path, path.name, options, {})["day"] == "string", text
            with pytest.raises(DataError, match="row 3 of all, header included: column `day`: a value is no timestamp"):
                rows(path, options, day="timestamp[us]")
        else:
            assert rows(path, options)[1]["day"] == wanted, text


@pytest.mark.parametrize("wrong", ["%d/%m", "%d.%m.%Y %q", "%Y-%Y-%d", "day", "%d/%m/%Y %", "%d.%m.%Y %z", ""])
def test_a_format_without_a_date_or_of_unknown_parts_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError, match=r"needs a day|is not read"):
        CsvOptions(timestamp_formats=(wrong,))


@pytest.mark.parametrize("index", ["", ","])
def test_a_value_that_is_none_is_of_the_column_that_it_stands_in_whichever_are_read(tmp_path: Path, index: str) -> None:
    """Arrow counts all columns of the file."""
    path = write(tmp_path, f"{index}n,text,price,day\n{'0,' if index else ''}1,a,2.5,26.03.2024\n")
    for kind, form in (
        ("timestamp[us]", "such as 2026-01-31 or 2026-01-31T14:30:00, without a zone"),
        ("timestamp[us, tz=UTC]", "such as 2026-01-31T14:30:00Z"),
        ("date32[day]", "such as 2026-01-31"),
    ):
        with pytest.raises(DataError, match="column `day`: a value is no ") as refused:
            rows(path, CsvOptions(), n="int64", day=kind)
        assert form in str(refused.value)


def test_a_ragged_row_that_is_no_utf8_is_refused_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2\n\xe9,2,3\n")
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(DataError, match="row 3"):
        csv_names(path, "a.csv", CsvOptions())
    assert printed == []
