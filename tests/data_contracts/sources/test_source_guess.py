"""A folder, a file or a URI is recognised by its files' names, and reads as the source that is guessed."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import fsspec
import pytest

from headway.data_contracts.sources.delimited import CsvChoice, csv_choice
from headway.data_contracts.sources.inference import GuessedSource, guess_source
from headway.data_contracts.sources.listing import list_local, list_remote
from headway.data_contracts.sources.reading import resolve_base_uri
from headway.data_contracts.store.errors import ConfigError, DataError, EnvironmentProblem
from headway.data_contracts.tables.csv_files import csv_columns, csv_names


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")


def wanted(found: GuessedSource, base: Path) -> list[str]:
    """The files that the guessed source reads."""
    spec, root = found.spec, resolve_base_uri(found.spec, base=base)
    if "://" in root:
        return [file.path for file in list_remote(root, spec.include, spec.exclude)]
    return [path for path, _ in list_local(Path(root), spec.include, spec.exclude)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.pq", "parquet"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.tsv", "csv"),
        ("a.jsonl", "json-lines"),
        ("a.ndjson.zst", "json-lines"),
        ("a.txt", "text-files"),
        ("a", "text-files"),
    ],
)
def test_the_format_is_what_the_suffix_says_for_a_folder_and_for_a_file(tmp_path: Path, name: str, kind: str) -> None:
    make(tmp_path, f"data/{name}")
    for data in ("data", f"data/{name}", str(tmp_path / "data"), f"file://{tmp_path}/data/{name}"):
        found = guess_source(data, base=tmp_path)
        assert found.spec.format == kind
        assert wanted(found, tmp_path) == [name]


def test_tabs_are_read_as_tabs(tmp_path: Path) -> None:
    make(tmp_path, "data/a.tsv")
    assert guess_source("data", base=tmp_path).spec.csv.delimiter == "\t"


def test_what_writers_leave_beside_tables_is_left_out(tmp_path: Path) -> None:
    make(
        tmp_path,
        "data/day=1/a.parquet",
        "data/_SUCCESS",
        "data/.a.parquet.crc",
        "data/_tmp/b.parquet",
        "data/readme.md",
    )
    found = guess_source("data", base=tmp_path)
    assert wanted(found, tmp_path) == ["day=1/a.parquet"]
    assert found.num_excluded >= 1


def test_a_workspace_among_the_data_is_none_of_them_before_and_after_it_is_there(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet", "b/a.parquet")
    for _ in range(2):
        found = guess_source(".", base=tmp_path, workspace=tmp_path / "workspace")
        assert "workspace/**" in found.spec.exclude and found.num_excluded == 0
        assert wanted(found, tmp_path) == ["a.parquet", "b/a.parquet"]
        make(tmp_path, "workspace/shards/a.parquet", "workspace/refs/1.json", "workspace/mlflow.db")
    assert not any("workspace" in each for each in guess_source("b", base=tmp_path, workspace=tmp_path).spec.exclude)


def test_texts_of_the_commonest_kind_are_read_and_the_others_counted(tmp_path: Path) -> None:
    make(tmp_path, "data/a.py", "data/pkg/__init__.py", "data/b.md")
    found = guess_source("data", base=tmp_path)
    assert wanted(found, tmp_path) == ["a.py", "pkg/__init__.py"]
    assert found.num_excluded == 1


def test_two_formats_of_tables_are_refused_by_name(tmp_path: Path) -> None:
    make(tmp_path, "data/a.parquet", "data/b.parquet", "data/c.csv")
    with pytest.raises(ConfigError, match=r"parquet \(2 files\) and csv \(1 file\)"):
        guess_source("data", base=tmp_path)


@pytest.mark.parametrize("name", ["a*.csv", "a[1].csv", "a?.csv", "[.csv"])
def test_a_single_file_is_read_alone_whatever_its_name(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"data/{name}", "data/a1.csv", "data/ab.csv")
    assert wanted(guess_source(f"data/{name}", base=tmp_path), tmp_path) == [name]


@pytest.mark.parametrize("data", ["data", "nowhere", "data/nothing.csv"])
def test_nothing_there_is_refused(tmp_path: Path, data: str) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError):
        guess_source(data, base=tmp_path)


def test_uris_of_folders_and_of_files_are_recognised(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    for name in ("day=1/a.parquet", "day=2/b.parquet"):
        fsspec.filesystem("memory").pipe_file(f"{uri}/{name}", b"x")
    assert wanted(guess_source(uri, base=tmp_path), tmp_path) == ["day=1/a.parquet", "day=2/b.parquet"]
    assert wanted(guess_source(f"{uri}/day=1/a.parquet", base=tmp_path), tmp_path) == ["a.parquet"]


def test_an_unknown_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        guess_source("nosuch://bucket/data", base=tmp_path)


@pytest.mark.parametrize("uri", ["ftp://127.0.0.1:1/a.csv", "http://127.0.0.1:1/a.csv", "http://127.0.0.1:1/"])
def test_a_server_that_does_not_answer_is_said(tmp_path: Path, uri: str) -> None:
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:1.*its server does not answer"):
        guess_source(uri, base=tmp_path)


@pytest.mark.process  # for what it takes of the processor
def test_files_of_an_installed_package_are_recognised(tmp_path: Path) -> None:
    found = guess_source("python:stdlib", base=tmp_path)
    assert (found.spec.format, found.spec.include) == ("text-files", ("**/*.py",))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("größe,b\n1.5,2\n".encode(), {}),
        ("größe;b\n1,5;2\n".encode("latin-1"), {"delimiter": ";", "encoding": "cp1252", "decimal": ","}),
        ("größe;b\n1,5;2.5\n".encode(), {"delimiter": ";"}),
        ("a\tb\n1\t2\n".encode("utf-16"), {"delimiter": "\t", "encoding": "utf-16"}),
        (b"a;b\n\x81;x\n", {"delimiter": ";", "encoding": "latin-1"}),
    ],
)
def test_how_a_csv_file_is_written_is_seen_in_its_first_lines(tmp_path: Path, data: bytes, options) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    assert guess_source("a.csv", base=tmp_path).spec.csv.model_dump(exclude_defaults=True) == options


@pytest.mark.parametrize(
    ("data", "said", "options"),
    [
        # Each is read otherwise where nothing is said.
        (b"a|b;c\n1|2;3\n", CsvChoice(delimiter="|"), {"delimiter": "|"}),
        ("ł;b\n1,5;2\n".encode("cp1250"), CsvChoice(encoding="cp1250"), {"encoding": "cp1250", "decimal": ","}),
        (b"a;b\n1,500;2\n", CsvChoice(decimal="."), {"thousands": ","}),
        (b"a b;c,d\n1 2;3,4\n", CsvChoice(delimiter=" ", decimal=","), {"delimiter": " ", "decimal": ","}),
    ],
)
def test_what_a_person_says_of_a_csv_file_is_taken_and_the_rest_is_found(
    tmp_path: Path, data: bytes, said: CsvChoice, options
) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    found = guess_source("a.csv", base=tmp_path).spec.csv
    csv = guess_source("a.csv", base=tmp_path, given=said).spec.csv
    assert csv != found
    assert csv.model_dump(exclude_defaults=True) == {"delimiter": ";", **options}


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (lines("a,b", '"$1,234.50",1', "$7,2"), {"thousands": ",", "units": {"a": "$"}}),
        (
            lines("a;b", "1.234,50 €;5,5 %", "7,00 €;6 %"),
            {"decimal": ",", "thousands": ".", "units": {"a": "€", "b": "%"}},
        ),
        (lines("a;b", "1'234.5;x", "7;y"), {"thousands": "'"}),
        (lines("a;b", "1 234,5;x", "7,25;y"), {"decimal": ",", "thousands": " "}),
        (lines("a;b", "1.234;0,234", "12.345;2,500"), {"decimal": ","}),
        (lines("a;b", "1.234,5;x", "7;y"), {"decimal": ",", "thousands": "."}),
        (lines("a,b", '"1,234,567",x', '"1,234",y'), {"thousands": ","}),
        # Plain decimals, versions, addresses, telephone numbers and lists of codes are no thousands.
        (lines("lat;b", "52.520;1.5", "48.137;2.5"), {}),
        (lines("version;b", "1.100;1,5", "1.200;2,5"), {"decimal": ","}),
        (lines("ip;b", "192.168.100.101;1", "10.100.100.102;2"), {}),
        (lines("ids,b", '"101,202",1', '"102,303",2'), {}),
        (lines("a;b", "555 123;x", "555 124;y"), {}),
        # Dollars and euros are not one number.
        (lines("a;b", "$1;x", "€2;y"), {}),
    ],
)
def test_how_numbers_are_written_is_seen_in_the_first_lines(tmp_path: Path, data: str, options) -> None:
    (tmp_path / "a.csv").write_text(data)
    found = guess_source("a.csv", base=tmp_path).spec.csv.model_dump(exclude_defaults=True)
    assert {name: value for name, value in found.items() if name != "delimiter"} == options


@pytest.mark.parametrize(
    ("data", "unclear", "said"),
    [
        (lines("a;b", "1,234;x", "2,345;y"), ("a",), {".": "int64", ",": "double"}),
        (lines("a;b", "1.234 €;x", "1.499 €;y"), ("a",), {".": "double", ",": "int64"}),
        (lines("a;b", "1.234;0,5", "2.345;1,5"), ("a",), {".": "double", ",": "int64"}),
        (lines("a;b", "1,5;2.5", "1,7;1.5"), ("a",), {".": "string", ",": "double"}),
        (lines("a,b", '"101,202",1', '"102,303",2'), ("a",), {".": "int64"}),
        (lines("a;b", "1,234;1.5", "7;2.5"), ("a",), {".": "int64", ",": "double"}),
        # Coordinates beside amounts; as many marks in each value as in codes.
        (lines("a;b", "52.520;1.234,50", "48.137;2,50"), ("a",), {",": "int64"}),
        (lines("a;b", "1.520;1.234,50", "137;2,50"), (), {",": "int64"}),
        (lines("a;b", "0,234;1", "1,345;2"), (), {".": "string", ",": "double"}),
    ],
)
def test_what_may_be_fractions_or_thousands_is_text_until_a_person_says(
    tmp_path: Path, data: str, unclear: tuple[str, ...], said: dict[str, str]
) -> None:
    (tmp_path / "a.csv").write_text(data)
    found = guess_source("a.csv", base=tmp_path)
    assert (found.unclear_numbers, found.spec.column_types) == (unclear, dict.fromkeys(unclear, "string"))
    for decimal, kind in said.items():
        spec = guess_source("a.csv", base=tmp_path, given=CsvChoice(decimal=decimal)).spec
        assert csv_columns(tmp_path / "a.csv", "a.csv", spec.csv, spec.column_types)["a"] == kind


def test_columns_that_lose_a_mark_are_named_and_telephone_numbers_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(lines("a;phone;b", "1 234,5;555 123 456;1 234,00", "7;555 123 457;2 000,00"))
    found = guess_source("a.csv", base=tmp_path)
    assert (found.spec.csv.thousands, found.grouped, found.unclear_numbers) == (" ", ("a", "b"), ())
    types = csv_columns(tmp_path / "a.csv", "a.csv", found.spec.csv, {})
    assert types == {"a": "double", "phone": "string", "b": "double"}


@pytest.mark.parametrize(
    ("above", "skipped"),
    [
        ("", 0),
        ("Sales of 2025, by shop\n", 1),
        ("sep=;\n", 1),
        ("Report 2025;;\n;;\n", 2),
        ("# made by a tool; version 3\n\n", 2),
    ],
)
@pytest.mark.parametrize("header", ["a;b;c", ";b;c"])
def test_lines_above_the_header_are_passed_over(tmp_path: Path, above: str, skipped: int, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{above}{header}\n" + "1;2,5;3\n" * 9)
    found = guess_source("a.csv", base=tmp_path)
    assert (found.spec.csv.delimiter, found.spec.csv.skip_rows) == (";", skipped)
    assert found.has_index == header.startswith(";")


def test_a_header_is_not_passed_over_for_a_row_that_has_more_or_fewer_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n1,2\n" + "1,2,3\n" * 9)
    assert guess_source("a.csv", base=tmp_path).spec.csv.skip_rows == 0


@pytest.mark.parametrize(
    "data",
    [
        lines('"Price', '(EUR)",qty', "1,2", "3,4"),
        lines('"Price', '(EUR)";qty;a;b;c', "1;2;3;4;5", "3;4;5;6;7"),
        lines("a,,,", "1,2,3,4", "5,6,7,8"),
        lines("a b c", "1,2,3", "4,5,6"),
        lines("text", "hello, world", "good, bye"),
        lines("text", "so, 5 apples", "and, 6 pears"),
        lines("name,,", "x,x,1", "y,z,2"),
        lines("name,,", "x,,1", "y,z,2"),
        lines("name,,", '"', ",b,c", "y,z,2"),
        lines('5" screens', "model,inch", "a,5", "b,6"),
    ],
)
def test_no_line_is_passed_over_where_what_follows_may_be_no_header(tmp_path: Path, data: str) -> None:
    (tmp_path / "a.csv").write_text(data)
    assert guess_source("a.csv", base=tmp_path).spec.csv.skip_rows == 0


@pytest.mark.parametrize(("skip_rows", "names"), [(1, ["a", "b", "c"]), (0, ["Report", "2025", "EUR"])])
def test_lines_above_the_header_can_be_said_where_they_do_not_show(
    tmp_path: Path, skip_rows: int, names: list[str]
) -> None:
    path = tmp_path / "a.csv"
    # A title that fills all columns is a header by its looks.
    path.write_text("Report;2025;EUR\na;b;c\n" + "1,5;2;3\n" * 9)
    csv = guess_source("a.csv", base=tmp_path, given=csv_choice("", "", "", skip_rows=skip_rows)).spec.csv
    assert (csv.delimiter, csv.skip_rows, csv_names(path, "a.csv", csv)) == (";", skip_rows, names)


def test_more_lines_above_the_header_than_the_file_has_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    csv = guess_source("a.csv", base=tmp_path, given=CsvChoice(skip_rows=9)).spec.csv
    with pytest.raises(DataError, match="no header or row below 9 lines") as refused:
        csv_names(path, "a.csv", csv)
    assert "--skip-rows" in refused.value.advice


def test_lines_above_the_header_are_counted_as_the_reader_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        "Umsätze\u2028und\x0bmehr\r\n\r\nladen,tag,wert\r\na,2025-01-01T10:00Z,1\r\nb,2025-01-02T10:00Z,2\r\n".encode()
    )
    csv = guess_source("a.csv", base=tmp_path).spec.csv
    assert (csv.skip_rows, csv_names(path, "a.csv", csv)) == (2, ["laden", "tag", "wert"])


def test_a_decimal_comma_that_is_said_leaves_commas_no_other_part(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b,c\n1;5,2\n")
    assert guess_source("a.csv", base=tmp_path).also_delimiters == (";",)
    assert guess_source("a.csv", base=tmp_path, given=CsvChoice(decimal=",")).spec.csv.delimiter == ";"
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="nothing but commas parts the values"):
        guess_source("a.csv", base=tmp_path, given=CsvChoice(decimal=","))


def test_with_a_delimiter_files_called_like_no_table_hold_one(tmp_path: Path) -> None:
    make(tmp_path, "data/a.dat", "data/b.dat", "data/names.md")
    found = guess_source("data", base=tmp_path, given=CsvChoice(delimiter=";"))
    assert (found.spec.format, wanted(found, tmp_path)) == ("csv", ["a.dat", "b.dat"])
    make(tmp_path, "data/c.csv")
    found = guess_source("data", base=tmp_path, given=CsvChoice(delimiter=";"))
    assert wanted(found, tmp_path) == ["c.csv"]


@pytest.mark.parametrize(
    ("name", "said", "advice"),
    [
        ("a.parquet", CsvChoice(delimiter=";"), "Leave it out"),
        ("a.jsonl", CsvChoice(decimal=","), "Leave it out"),
        ("a.txt", CsvChoice(encoding="cp1252"), "Say `--delimiter`, too"),
    ],
)
def test_what_is_said_of_files_that_are_no_delimited_text_is_refused(
    tmp_path: Path, name: str, said: CsvChoice, advice: str
) -> None:
    make(tmp_path, name)
    with pytest.raises(ConfigError, match=f"goes with delimited text.*{advice}"):
        guess_source(name, base=tmp_path, given=said)


def test_an_encoding_that_is_said_and_is_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe;b\n1;2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv: its first lines are not written in utf-8"):
        guess_source("a.csv", base=tmp_path, given=CsvChoice(encoding="utf-8"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tab", "", ""), CsvChoice(delimiter="\t")),
        ((r"\t", "Windows-1252", ","), CsvChoice("\t", "cp1252", ",")),
        (("semicolon", "ISO-8859-1", "."), CsvChoice(";", "latin-1", ".")),
        (("|", "UTF8", ""), CsvChoice("|", "utf-8")),
        (("", "utf-8-sig", ""), CsvChoice(encoding="utf-8")),
        (("", "", ""), CsvChoice()),
    ],
)
def test_words_of_a_command_line_are_taken_in_their_usual_spellings(
    words: tuple[str, str, str], said: CsvChoice
) -> None:
    assert csv_choice(*words) == said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((";;", "", ""), "--delimiter ';;': is no delimiter"),
        (("§", "", ""), "is no delimiter"),
        (("\n", "", ""), "is no delimiter"),
        (('"', "", ""), "is no delimiter"),
        (("", "koi8-r", ""), "--encoding 'koi8-r': is no encoding that is read. There are utf-8, utf-16"),
        (("", "nonsense", ""), "is no encoding that is read"),
        (("", "", "comma"), "--decimal 'comma': is neither `.` nor `,`"),
        ((",", "", ","), "delimiter and decimal are the same"),
        ((".", "", "."), "delimiter and decimal are the same"),
        *(((";", "", "", "", (null,)), f"--null {null!r}: is no cell") for null in ("", "a\nb", 'a"', ";")),
    ],
)
def test_words_that_mean_nothing_are_refused(words: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        csv_choice(*words)


def test_a_first_column_without_a_name_is_seen_behind_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf,a\n0,1\n")
    assert guess_source("a.csv", base=tmp_path).has_index


@pytest.mark.parametrize(
    ("lines", "formats", "unclear"),
    [
        ("day\n1.2.2025\n", ("%d.%m.%Y",), ()),
        ("day\n01/02/2025\n25/02/2025\n", ("%d/%m/%Y",), ()),
        ("day\n02/01/2025\n02/25/2025\n", ("%m/%d/%Y",), ()),
        ("day\n02/01/2025\n", (), ("%d/%m/%Y", "%m/%d/%Y")),
        ("day,at\n02/01/2025,25/01/2025 10:30\n", ("%d/%m/%Y", "%d/%m/%Y %H:%M"), ()),
        ("at\n25-01-2025 10:30:05\n", ("%d-%m-%Y %H:%M:%S",), ()),
        ("day,other\n25/01/2025,01/25/2025\n", (), ("%d/%m/%Y", "%m/%d/%Y")),
        ("day\n25/25/2025\n", (), ()),
        ("day\n25/01/2025\nunknown\n", (), ()),
        ("day\n2025-01-25\n", (), ()),
        ("day\n2025-01-25\n26.01.2025\n2025-01-27 10:30\n", ("%d.%m.%Y",), ()),
        ("day\n2025-01-25\n01/26/2025\n", ("%m/%d/%Y",), ()),
        ('day,"a, b"\n"25/01/2025","1, 2"\n,\n', ("%d/%m/%Y",), ()),
    ],
)
def test_how_dates_are_written_is_found_where_they_tell(tmp_path: Path, lines: str, formats, unclear) -> None:
    (tmp_path / "a.csv").write_text(lines)
    found = guess_source("a.csv", base=tmp_path)
    assert (found.spec.csv.timestamp_formats, found.unclear_dates) == (formats, unclear)


def test_how_dates_are_written_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day\n02/01/2025\n")
    found = guess_source("a.csv", base=tmp_path, given=csv_choice("", "", "", "%m/%d/%Y"))
    assert (found.spec.csv.timestamp_formats, found.unclear_dates) == (("%m/%d/%Y",), ())
    with pytest.raises(ConfigError, match="needs a day"):
        csv_choice("", "", "", "%m/%Y")


def test_a_pipe_is_no_folder_that_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: it is neither a file nor a folder"):
        guess_source("pipe", base=tmp_path)


def test_an_encoding_that_the_file_is_not_in_is_said_also_without_a_mark_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n" * 9)
    with pytest.raises(DataError, match="not written in utf-16"):
        guess_source("a.csv", base=tmp_path, given=csv_choice("", "utf-16", ""))


def test_an_empty_name_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="empty"):
        guess_source("", base=tmp_path)
