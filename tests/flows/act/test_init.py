"""`headway contract init`: a first contract and pipeline in one command, which pass on their own data at once."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.rules.contract import load_contract
from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.flows.config.pipeline_spec import load_pipeline
from tests.flows.act.conftest import Headway
from tests.flows.act.orders import EMAIL, NUM_ROWS, orders, write_parquet


@pytest.mark.process
def test_a_draft_passes_on_its_own_data_at_once_and_asks_what_to_decide(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    drafted = headway("contract", "init", "data", "--name", "orders")
    assert drafted.code == 0, drafted.err
    assert "may hold personal data: contact" in drafted.out
    assert "headway contract check orders.pipeline.yaml" in drafted.out
    text = (tmp_path / "orders.contract.yaml").read_text()
    assert "DECIDE" in text
    assert EMAIL not in text
    checked = headway("contract", "check", "orders.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "✔ passed orders 1.0.0" in checked.out
    assert "600 rows in 2 files" in checked.out


def write_csv(folder: Path) -> None:
    folder.mkdir()
    pa.csv.write_csv(orders(), folder / "a.csv")


def write_tabs(folder: Path) -> None:
    folder.mkdir()
    pa.csv.write_csv(orders(), folder / "a.tsv", pa.csv.WriteOptions(delimiter="\t"))


def write_json_lines(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in orders().to_pylist()))


def write_partitions(folder: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        (folder / f"day={day}").mkdir(parents=True)
        pq.write_table(orders(), folder / f"day={day}" / "part.parquet")


FORMATS = {"csv": write_csv, "tsv": write_tabs, "json-lines": write_json_lines, "partitions": write_partitions}


@pytest.mark.process
def test_a_new_folder_of_a_partitioned_source_keeps_the_draft(headway: Headway, tmp_path: Path) -> None:
    write_partitions(tmp_path / "data")
    assert headway("contract", "init", "data", "--name", "orders").code == 0
    (tmp_path / "data/day=2026-02-01").mkdir()
    pq.write_table(orders(), tmp_path / "data/day=2026-02-01/part.parquet")
    checked = headway("contract", "check", "orders.contract.yaml", "data")
    broken = [line for line in checked.out.splitlines() if "✖" in line and "day" in line]
    assert not broken, checked.out
    encoder = load_pipeline(tmp_path / "orders.pipeline.yaml").shards.encoder
    assert "day" not in (*encoder.numeric, *encoder.categorical), "tomorrow's day is no known category"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("written", FORMATS)
def test_tables_of_every_format_pass_their_own_draft(headway: Headway, tmp_path: Path, written: str) -> None:
    FORMATS[written](tmp_path / "data")
    drafted = headway("contract", "init", "data", "--name", "orders")
    assert drafted.code == 0, drafted.err
    contract = load_contract(tmp_path / "orders.contract.yaml")
    assert contract.columns["id"].type == "int64"
    assert contract.columns["country"].one_of == ("DE", "FR", "US")
    assert contract.columns["discount"].nullable
    for requested in (["orders.pipeline.yaml"], ["orders.contract.yaml", "data"]):
        checked = headway("contract", "check", *requested)
        assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_types_that_files_do_not_carry_are_pinned_in_the_pipeline(headway: Headway, tmp_path: Path) -> None:
    write_csv(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    types = load_pipeline(tmp_path / "orders.pipeline.yaml").source.column_types
    assert types == {
        name: column.type for name, column in load_contract(tmp_path / "orders.contract.yaml").columns.items()
    }


def test_data_behind_a_uri_are_drafted_and_checked(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "local")
    uri = f"memory://{uuid.uuid4().hex}/orders"
    fsspec.filesystem("memory").put(str(tmp_path / "local"), uri, recursive=True)
    drafted = headway("contract", "init", uri)
    assert drafted.code == 0, drafted.err
    assert load_pipeline(tmp_path / "orders.pipeline.yaml").source.uri == uri
    checked = headway("contract", "check", "orders.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "600 rows in 2 files" in checked.out


def test_a_draft_of_the_folder_that_holds_the_workspace_reads_none_of_it(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "parts")
    assert headway("hold", "--name", "orders", "--why", "a workspace").code == 0
    drafted = headway("contract", "init", ".", "--name", "orders")
    assert drafted.code == 0 and "600 rows" in drafted.out, drafted.err
    assert "workspace/**" in load_pipeline(tmp_path / "orders.pipeline.yaml").source.exclude


@pytest.mark.parametrize("existing", ["orders.contract.yaml", "orders.pipeline.yaml"])
def test_nothing_is_overwritten(headway: Headway, tmp_path: Path, existing: str) -> None:
    write_parquet(tmp_path / "data")
    (tmp_path / existing).write_text("mine")
    answer = headway("contract", "init", "data", "--name", "orders")
    assert answer.code == 2
    assert "exists already" in answer.err and "Remove contract and pipeline file to draft both anew" in answer.err
    assert (tmp_path / existing).read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"data", existing}


def test_no_files_and_no_rows_are_refused_and_write_nothing(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert headway("contract", "init", "empty").code == 3
    pq.write_table(orders().slice(0, 0), tmp_path / "empty" / "a.parquet")
    answer = headway("contract", "init", "empty")
    assert answer.code == 3
    assert "no rows" in answer.err
    assert headway("contract", "init", "nowhere").code == 3
    assert {path.name for path in tmp_path.iterdir()} == {"empty"}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("Orders", "orders"), ("a b", "a-b"), ("-x", "x"), ("é", "data")),
        *((name, f"data-{name}") for name in ("123", "null", "yes", "0x1f", "2026-01-01")),
        ("a" * 300, "a" * 100),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_one_that_can(
    headway: Headway, tmp_path: Path, name: str, other: str
) -> None:
    write_parquet(tmp_path / "data")
    for command in (("contract", "init", "data", f"--name={name}"), ("init", "--", name)):
        refused = headway(*command)
        assert refused.code == 2 and f"Try '{other}'." in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.process
def test_a_file_that_is_called_as_yaml_calls_a_day_is_drafted_under_a_name_that_is_text(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "2026-01-01.csv").write_text("a,b\n" + "".join(f"{number},{number % 7}\n" for number in range(60)))
    assert headway("contract", "init", "2026-01-01.csv").code == 0
    assert load_pipeline(tmp_path / "data-2026-01-01.pipeline.yaml").registry.model == "data-2026-01-01"


def test_a_draft_may_lie_anywhere_and_its_pipeline_finds_the_data(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    assert headway("contract", "init", "data/a.parquet", "--out", "deep/er/mine.yaml").code == 0
    pipeline = load_pipeline(tmp_path / "deep" / "er" / "mine.pipeline.yaml")
    assert pipeline.contract == "mine.yaml"
    assert pipeline.source.include == ("a.parquet",)
    assert load_contract(tmp_path / "deep" / "er" / "mine.yaml").name == "a"
    checked = headway("contract", "check", "deep/er/mine.pipeline.yaml")
    assert checked.code == 0
    assert "300 rows in 1 file" in checked.out


@pytest.mark.process
def test_one_file_names_its_draft_and_the_label_left_open_is_told_with_what_it_takes(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    rows = "".join(f"{number % 90},{'no' if number % 3 else 'yes'}\n" for number in range(NUM_ROWS))
    (tmp_path / "data" / "Churn of 2026.csv").write_text(f"age,churned\n{rows}")
    assert headway("contract", "init", "data").code == 0
    assert load_contract(tmp_path / "churn-of-2026.contract.yaml").name == "churn-of-2026"
    path = tmp_path / "churn-of-2026.pipeline.yaml"
    drafted = path.read_text()
    assert load_pipeline(path).registry.model == "churn-of-2026"
    assert "DECIDE: `label: COLUMN`, the column to predict (`churned`, perhaps)" in drafted
    assert "Take it out of `numeric` or `categorical`" in drafted
    assert headway("contract", "check", path.name).code == 0
    assert "no column to predict" in headway("plan", path.name).err
    path.write_text(drafted.replace("  encoder:", "  encoder:\n    label: churned", 1))
    twice = headway("plan", path.name)
    assert twice.code == 2 and "`churned` in `categorical` and in `label`" in twice.err
    path.write_text(path.read_text().replace("categorical: [churned]", "categorical: []"))
    assert headway("plan", path.name).code == 0


def test_text_files_are_drafted_with_bytes_of_unknown_meaning_set_aside(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(300):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}\n" * (1 + number % 5))
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "texts" / "note.md").write_text("left out")
    drafted = headway("contract", "init", "texts")
    assert drafted.code == 0, drafted.err
    assert "1 file of another kind" in drafted.out
    assert load_pipeline(tmp_path / "texts.pipeline.yaml").shards.encoder.kind == "byte-pair"
    checked = headway("contract", "check", "texts.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "300 rows in 301 files, 1 quarantined" in checked.out


@pytest.mark.process
def test_a_plan_reads_the_drafted_pipeline_of_a_table(headway: Headway, tmp_path: Path) -> None:
    write_partitions(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    shards = load_pipeline(tmp_path / "orders.pipeline.yaml").shards
    assert (shards.group_by, shards.split_by) == ("folder", "row")
    answer = headway("plan", "orders.pipeline.yaml")
    assert answer.code == 0, answer.err
    assert "2 files" in answer.out


def test_a_key_decides_the_split_of_a_table(headway: Headway, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data")
    headway("contract", "init", "data", "--name", "orders")
    shards = load_pipeline(tmp_path / "orders.pipeline.yaml").shards
    assert (shards.split_by, shards.split_key) == ("key", "id")


def test_a_key_that_is_null_in_a_row_or_binary_is_not_drafted_as_what_decides_the_split(
    headway: Headway, tmp_path: Path
) -> None:
    """Sharding would refuse the one at its first null, the other by its type."""
    numbers = range(NUM_ROWS)
    gaps = pa.array([None, *numbers[1:]], pa.int64())
    digests = pa.array([b"%06d" % number for number in numbers])
    write_parquet(tmp_path / "data", pa.table({"gaps": gaps, "digest": digests}))
    headway("contract", "init", "data", "--name", "gaps")
    columns = load_contract(tmp_path / "gaps.contract.yaml").columns
    assert columns["digest"].unique and not columns["gaps"].unique, "one is called a key, the other may be by chance"
    assert load_pipeline(tmp_path / "gaps.pipeline.yaml").shards.split_by == "row"
    write_parquet(tmp_path / "more", pa.table({"gaps": gaps, "digest": digests, "name": digests.cast(pa.string())}))
    headway("contract", "init", "more", "--name", "more")
    assert load_pipeline(tmp_path / "more.pipeline.yaml").shards.split_key == "name"


def test_a_draft_of_live_data_asks_for_fresh_rows_and_passes(headway: Headway, tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    moments = [now - datetime.timedelta(hours=hours) for hours in range(200)]
    (tmp_path / "data").mkdir()
    table = pa.table({"at": pa.array(moments, pa.timestamp("us", tz="UTC")), "x": [float(n % 50) for n in range(200)]})
    pq.write_table(table, tmp_path / "data/a.parquet")
    headway("contract", "init", "data", "--name", "live")
    contract = load_contract(tmp_path / "live.contract.yaml")
    assert [rule.column for rule in contract.freshness] == ["at"]
    assert [rule.columns for rule in contract.drift] == [("x",)]
    checked = headway("contract", "check", "live.contract.yaml", "data")
    assert checked.code == 0, checked.out + checked.err


def test_kinds_of_every_type_pass_their_own_draft(headway: Headway, tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 1, 12, 30)
    columns: dict[str, Any] = {
        "flag": pa.array([True, False, None] * 40),
        "small": pa.array([-5, 5, None] * 40, pa.int8()),
        "big": pa.array([2**63, 2**64 - 1, 7] * 40, pa.uint64()),
        "low": pa.array([-(2**63), 2**63 - 1, 0] * 40),
        "half": pa.array([0.1, float("nan"), float("-inf")] * 40, pa.float32()),
        "tiny": pa.array([5e-324, -1.5e308, 1.5e308] * 40),
        "bytes": pa.array([b"\x00", b"", None] * 40),
        "day": pa.array([moment.date()] * 120),
        "naive": pa.array([moment] * 120, pa.timestamp("us")),
        "zoned": pa.array([moment] * 120, pa.timestamp("ns", tz="Europe/Berlin")),
        "time": pa.array([moment.time()] * 120, pa.time64("us")),
        "price": pa.array([Decimal("-1.25"), Decimal("99999999.99"), None] * 40, pa.decimal128(18, 2)),
        "digest": pa.array([b"0123456789abcdef"] * 120, pa.binary(16)),
        "tokens": pa.array([[1, 50256], [], None] * 40, pa.list_(pa.int32())),
        "holes": pa.array([[1, None], [2], [3]] * 40, pa.large_list(pa.int64())),
        "vector": pa.array([[0.5, float("nan")]] * 120, pa.list_(pa.float32(), 2)),
        "words": pa.array([["a", "b"], ["c"], []] * 40, pa.list_(pa.string())),
        "coded": pa.array(["x", "y", "z"] * 40).dictionary_encode(),
        "text": pa.array(["", "é", "a,\"b'\n"] * 40),
        "odd: #name": pa.array([f"{number}" for number in range(120)]),
        "nothing": pa.array([None] * 120, pa.string()),
    }
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "data" / "a.parquet")
    assert headway("contract", "init", "data", "--name", "kinds").code == 0
    checked = headway("contract", "check", "kinds.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_paths_on_the_command_line_start_in_the_current_folder_wherever_the_project_is(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("id,label\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HEADWAY_PROJECT", str(tmp_path / "project"))
    answer = headway("contract", "init", "rows.csv")
    assert answer.code == 0, answer.err
    assert (tmp_path / "rows.contract.yaml").is_file() and not list((tmp_path / "project").iterdir())
    checked = headway("contract", "check", "rows.contract.yaml", "rows.csv")
    assert checked.code == 0, checked.err
    compared = headway("contract", "diff", "rows.contract.yaml", "rows.contract.yaml")
    assert compared.code == 0, compared.err


@pytest.mark.process
def test_a_label_that_is_said_is_drafted_and_what_is_guessed_or_left_out_is_said(
    headway: Headway, tmp_path: Path
) -> None:
    prices = [f"{number % 173}.5" if number % 10 else "" for number in range(NUM_ROWS)]
    lines = (f"{n % 7},{n % 97}.25,{prices[n]},a{n}@example.org,2026-01-{1 + n % 28:02d}" for n in range(NUM_ROWS))
    (tmp_path / "sales.csv").write_text("rooms,area,price,contact,day\n" + "\n".join(lines) + "\n")
    drafted = headway("contract", "init", "sales.csv", "--label", "price")
    assert drafted.code == 0, drafted.err
    assert "to predict   price, a number: as you said" in drafted.out
    assert "60 rows without price: the contract leaves them out" in drafted.out
    assert "not read     contact (may hold personal data)\n" in drafted.out
    assert "rows (30%) judge the model" in drafted.out
    pipeline = load_pipeline(tmp_path / "sales.pipeline.yaml")
    encoder = pipeline.shards.encoder
    assert (encoder.numeric, encoder.label, encoder.label_kind) == (("rooms", "area"), "price", "number")
    assert encoder.times == ("day",)
    assert pipeline.training.recipe.name == "tabular-regressor"
    rooms = load_contract(tmp_path / "sales.contract.yaml").columns["rooms"]
    assert not rooms.one_of and rooms.min == 0 and rooms.max >= 7, "counts have an order, and the next is no mistake"
    checked = headway("contract", "check", "sales.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "60 quarantined" in checked.out
    planned = headway("plan", "sales.pipeline.yaml", "--no-rehearse")
    assert planned.code == 0, planned.err
    assert re.search(r"length +\d+ epochs, about [\d,]+ steps", planned.out)


@pytest.mark.process
def test_a_guessed_label_is_said_and_one_that_is_not_there_is_refused_before_anything_is_written(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("x,target\n" + "".join(f"{n % 50}.5,{n % 3}\n" for n in range(NUM_ROWS)))
    refused = headway("contract", "init", "rows.csv", "--label", "taget")
    assert refused.code == 2 and "Did you mean 'target'? There are x, target." in refused.err
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv"}
    drafted = headway("contract", "init", "rows.csv")
    assert "to predict   target, a class of 3: guessed by its name. `--label COLUMN` says another" in drafted.out


def _days(*months: int) -> str:
    days = (f"{month:02}/{day:02}/2025 10:{day:02}" for month in months for day in range(1, 13))
    return "".join(f"{at},{n % 7},{n % 2}\n" for n, at in enumerate(days))


@pytest.mark.process
def test_dates_whose_day_may_be_their_month_are_read_as_all_files_say(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text(f"at,x,target\n{_days(1, 2, 3)}")
    drafted = headway("contract", "init", "data", "--name", "both")
    line = "dates may be '%d/%m/%Y %H:%M' or '%m/%d/%Y %H:%M', and are texts so far: `--timestamp-format` says which"
    assert line in drafted.out and "with a `--timestamp-format` that fits, it would be read" in drafted.out
    said = headway("contract", "init", "data", "--name", "no-time", "--timestamp-format", "%m/%d/%Y")
    assert "dates that '%m/%d/%Y' does not read are texts so far: `--timestamp-format` may be" in said.out
    assert "'%m/%d/%Y %H:%M'" in said.out
    said = headway("contract", "init", "data", "--name", "said", "--timestamp-format", "%m/%d/%Y %H:%M")
    assert "texts so far" not in said.out
    assert load_contract(tmp_path / "said.contract.yaml").columns["at"].type.startswith("timestamp")
    # Files in order of time: the first one has days of no more than twelve.
    (tmp_path / "data/b.csv").write_text("at,x,target\n12/31/2025 10:00,1,0\n,2,1\n")
    found = headway("contract", "init", "data", "--name", "found")
    assert "timestamp format '%m/%d/%Y %H:%M'; found in the data" in found.out and "texts so far" not in found.out
    assert load_contract(tmp_path / "found.contract.yaml").columns["at"].type.startswith("timestamp")
    assert headway("contract", "check", "found.pipeline.yaml").code == 0


@pytest.mark.process
def test_lines_above_the_header_are_said_drafted_and_passed_over(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "Report,2025,EUR\nx,y,target\n" + "".join(f"{n % 9},{n % 7},{n % 2}\n" for n in range(99))
    )
    drafted = headway("contract", "init", "a.csv", "--skip-rows", "1")
    assert "1 line above the header passed over (as you said): `source.csv.skip_rows`" in drafted.out, drafted.err
    assert load_pipeline(tmp_path / "a.pipeline.yaml").source.csv.skip_rows == 1
    checked = headway("contract", "check", "a.pipeline.yaml")
    assert checked.code == 0 and "99 rows in 1 file" in checked.out
    project = headway("init", "p", "--data", "a.csv", "--label", "target", "--skip-rows", "1")
    assert "(as you said): `source.csv.skip_rows`" in project.out, project.err
    (tmp_path / "b.csv").write_text("x,y,target\n")
    refused = headway("contract", "init", "b.csv")
    assert refused.code != 0 and "b.csv: there are no rows" in refused.err


@pytest.mark.process
@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_what_separates_values_is_found_and_said(headway: Headway, tmp_path: Path, delimiter: str) -> None:
    rows = "".join(f'{n % 50}{delimiter}"a, b"{delimiter}{n % 2}\n' for n in range(NUM_ROWS))
    (tmp_path / "rows.csv").write_text(f"x{delimiter}words{delimiter}target\n{rows}")
    drafted = headway("contract", "init", "rows.csv")
    assert drafted.code == 0, drafted.err
    assert re.search(rf"read as +delimiter {re.escape(repr(delimiter))}, .*; found in the data", drafted.out)
    assert list(load_contract(tmp_path / "rows.contract.yaml").columns) == ["x", "words", "target"]


def _sales(delimiter: str, price: str = "{},5") -> str:
    rows = (f"Łódź {n % 3}{delimiter}{price.format(n % 97)}{delimiter}{n % 2}\n" for n in range(NUM_ROWS))
    return f"miasto{delimiter}cena{delimiter}target\n{''.join(rows)}"


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "data", "options", "line", "csv"),
    [
        (
            "a.csv",
            _sales(";").encode("cp1250"),
            ("--encoding", "windows-1250"),
            "delimiter ';', encoding cp1250 (as you said), decimal ','; found in the data: --delimiter, --dec",
            {"delimiter": ";", "encoding": "cp1250", "decimal": ","},
        ),
        (
            "a.csv",
            _sales("|").replace("Łódź", "a;b").encode("latin-1"),
            ("--delimiter", "pipe", "--encoding", "latin1", "--decimal", ","),
            "delimiter '|' (as you said), encoding latin-1 (as you said), decimal ',' (as you said)\n",
            {"delimiter": "|", "encoding": "latin-1", "decimal": ","},
        ),
        (
            "a.dat",
            _sales("\t", "{}.5").encode(),
            ("--delimiter", "tab"),
            "delimiter '\\t' (as you said), encoding utf-8, decimal '.'; found in the data: --encoding, --dec",
            {"delimiter": "\t"},
        ),
    ],
)
def test_what_a_person_says_of_delimited_text_is_drafted_said_and_keeps_its_contract(
    headway: Headway, tmp_path: Path, file: str, data: bytes, options: tuple[str, ...], line: str, csv
) -> None:
    (tmp_path / file).write_bytes(data)
    drafted = headway("contract", "init", file, *options)
    assert drafted.code == 0, drafted.err
    assert line in drafted.out
    source = load_pipeline(tmp_path / "a.pipeline.yaml").source
    assert (source.format, source.csv.model_dump(exclude_defaults=True)) == ("csv", csv)
    columns = load_contract(tmp_path / "a.contract.yaml").columns
    assert {name: column.type for name, column in columns.items()} == {
        "miasto": "string",
        "cena": "double",
        "target": "int64",
    }
    if csv.get("encoding") != "latin-1":
        assert columns["miasto"].one_of == ("Łódź 0", "Łódź 1", "Łódź 2")
    checked = headway("contract", "check", "a.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


def test_what_is_said_of_delimited_text_and_means_nothing_is_refused_before_anything_is_read(
    headway: Headway, tmp_path: Path
) -> None:
    for options, message in {
        ("--delimiter", ";;"): "--delimiter ';;': is no delimiter",
        ("--encoding", "latin-99"): "--encoding 'latin-99': is no encoding that is read. There are utf-8,",
        ("--decimal", ";"): "--decimal ';': is neither",
    }.items():
        for command in (("contract", "init", "nowhere.csv"), ("init", "shop", "--data", "nowhere.csv")):
            refused = headway(*command, *options)
            assert (refused.code, message in refused.err) == (2, True), refused.err
    refused = headway("init", "shop", "--delimiter", ";")
    assert refused.code == 2 and "--delimiter: goes with data of your own. Say `--data`" in refused.err
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_a_new_project_takes_what_is_said_of_its_data(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(_sales(";").encode("cp1250"))
    drafted = headway("init", "shop", "--data", "a.csv", "--encoding", "cp1250")
    assert drafted.code == 0, drafted.err
    assert "encoding cp1250 (as you said)" in drafted.out
    csv = load_pipeline(tmp_path / "shop/deployments/shop.pipeline.yaml").source.csv
    assert csv.model_dump(exclude_defaults=True) == {"delimiter": ";", "encoding": "cp1250", "decimal": ","}


def _churn(folder: Path, *, extra: str = "") -> None:
    """`closed` is written when a customer has left; `fee` nearly tells it; `age` tells nothing."""
    left = [n * 7919 % 10 < 3 for n in range(NUM_ROWS)]
    rows = (
        f"{n % 61},{'DE' if n % 3 else 'FR'},{n % 5 + (20 if left[n] else 0)}.5,"
        f"{(3 if left[n] else 1) if n % 49 else 2},{'yes' if left[n] else 'no'}\n"
        for n in range(NUM_ROWS)
    )
    (folder / "churn.csv").write_text(f"age,country,closed,fee,churned\n{''.join(rows)}")


@pytest.mark.process
def test_an_input_that_tells_the_label_is_named_and_not_read_and_one_that_nearly_does_is_named(
    headway: Headway, tmp_path: Path
) -> None:
    _churn(tmp_path)
    drafted = headway("contract", "init", "churn.csv", "--label", "churned")
    assert drafted.code == 0, drafted.err
    assert "leak         closed alone tells churned, in all rows: the draft does not read it." in drafted.out
    assert "leak?        fee alone nearly tells churned, in all rows. Look whether it is known" in drafted.out
    assert "not read     closed (alone tells churned)" in drafted.out
    encoder = load_pipeline(tmp_path / "churn.pipeline.yaml").shards.encoder
    assert {*encoder.numeric, *encoder.categorical} == {"age", "country", "fee"}
    contract = (tmp_path / "churn.contract.yaml").read_text()
    columns = {name: contract.split(f"  {name}:\n")[1].split("type:")[0] for name in ("closed", "fee", "age")}
    assert "LEAK: it alone tells churned" in columns["closed"]
    assert "LEAK? It alone nearly tells churned" in columns["fee"]
    assert "LEAK" not in columns["age"]
    assert "LEAK? fee alone nearly tells churned" in (tmp_path / "churn.pipeline.yaml").read_text()
    checked = headway("contract", "check", "churn.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err
    assert "`closed`" not in checked.out
    assert "`fee` alone nearly tells `churned`" in checked.out, "the draft and the check are of one mind"


@pytest.mark.process
def test_where_nothing_else_could_be_read_the_input_that_tells_the_label_stays(
    headway: Headway, tmp_path: Path
) -> None:
    rows = "".join(f"{n % 2},{n % 2}\n" for n in range(NUM_ROWS))
    (tmp_path / "rows.csv").write_text(f"x,target\n{rows}")
    drafted = headway("init", "copy", "--data", "rows.csv")
    assert drafted.code == 0, drafted.err
    assert "leak         x alone tells target, in all rows. Take the column out of the inputs, or" in drafted.out
    assert load_pipeline(tmp_path / "copy/deployments/copy.pipeline.yaml").shards.encoder.categorical == ("x",)


@pytest.mark.process
def test_a_column_without_a_value_and_numbers_that_a_later_file_alone_shows_are_drafted(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "sales").mkdir()
    for month, price in (("01", "{}"), ("02", "{}.5")):
        rows = "".join(f"{price.format(n % 50)},,{n if month == '02' else ''},{n % 2}\n" for n in range(NUM_ROWS))
        (tmp_path / f"sales/2026-{month}.csv").write_text(f"price,notes,late,target\n{rows}")
    drafted = headway("contract", "init", "sales")
    assert drafted.code == 0, drafted.err
    assert "not read     notes (holds nothing but nulls)" in drafted.out
    columns = load_contract(tmp_path / "sales.contract.yaml").columns
    types = {"price": "double", "notes": "string", "late": "int64", "target": "int64"}
    assert {name: column.type for name, column in columns.items()} == types
    checked = headway("contract", "check", "sales.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_how_programs_write_numbers_and_gaps_is_found_and_said(headway: Headway, tmp_path: Path) -> None:
    rows = "".join(
        f"{'NA' if n % 9 == 0 else f'{n % 50}.5'},{'?' if n % 7 == 0 else n % 40},{'NA' if n % 2 else 'b'},"
        f'"$1,{n % 83 + 100}.50",{n % 31}%,"{n % 3 + 101},202",{n % 3}\n'
        for n in range(NUM_ROWS)
    )
    (tmp_path / "rows.csv").write_text(f"x,z,words,paid,share,codes,target\n{rows}")
    drafted = headway("contract", "init", "rows.csv")
    assert drafted.code == 0, drafted.err
    assert (
        "numbers      read without ',' between thousands of `paid` and '$' of `paid` and '%' of `share`" in drafted.out
    )
    assert "`codes` may hold numbers, and is text so far: nothing tells fractions from thousands" in drafted.out
    assert "'NA' and '?' among numbers are gaps, in every other column, too: `source.csv.nulls`" in drafted.out
    spec = load_pipeline(tmp_path / "rows.pipeline.yaml")
    assert spec.source.csv.nulls == ("", "NA", "?")
    assert spec.source.csv.units == {"paid": "$", "share": "%"}
    assert spec.source.column_types["codes"] == "string"
    assert spec.shards.encoder.numeric == ("x", "z", "paid", "share")
    checked = headway("contract", "check", "rows.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_a_header_among_the_rows_stray_cells_and_mistyped_classes_are_said(headway: Headway, tmp_path: Path) -> None:
    lines = [f"{n}.5,{n % 60 or 'k.A.'},{n % 3}.5,{'yes' if n % 2 else 'no'}" for n in range(NUM_ROWS)]
    header = "amount,visits,rate,churn"
    (tmp_path / "rows.csv").write_text("\n".join([header, *lines, header, "7.5,oops,1,yse", "8.5,9,1,No ", ""]))
    drafted = headway("contract", "init", "rows.csv", "--label", "churn")
    assert drafted.code == 0, drafted.err
    assert (
        "header       stands among the rows, too, by `amount` and `visits` and `rate`: take that line out"
        in drafted.out
    )
    assert "`visits` is text, though nearly all of it are numbers;" in drafted.out
    assert "`amount` is text, though" not in drafted.out
    assert (
        "values are none, such as 'k.A.', 'oops', 'visits': correct them, or take them for gaps by `--null k.A. --null "
        "oops --null visits`, and draft anew" in drafted.out
    )
    assert "rare         'No ' in 1 row, 'churn' in 1 row, 'yse' in 1 row: a class each. If they are" in drafted.out
    assert "alike        'No ' and 'no': a class each, though case and spaces alone differ: write" in drafted.out
    assert f"amount (text, though {NUM_ROWS + 2} of {NUM_ROWS + 3} values are numbers)" in drafted.out
    (tmp_path / "one.csv").write_text("\n".join(["x,y", *(f"{n}.5,{n % 2}" for n in range(NUM_ROWS)), "oops,1", ""]))
    truths = (*(f"{n}.5,{'yes' if n % 2 else 'no'}" for n in range(40)), *(f"{n}.5,{n % 2 > 0}" for n in range(40)))
    (tmp_path / "truths.csv").write_text("\n".join(["x,y", *truths, ""]))
    said = headway("contract", "init", "truths.csv", "--label", "y")
    assert "alike        'False', 'no', 'True', 'yes': a class each, though all say yes or no: write" in said.out
    refused = headway("contract", "init", "one.csv", "--label", "y")
    assert "Of `x` nearly all values are numbers; correct those that are none, such as 'oops', or of" in refused.err
    taken = headway("contract", "init", "one.csv", "--label", "y", "--null", "oops")
    assert taken.code == 0, taken.err
    assert "'oops' among numbers is a gap (as you said)" in taken.out and "no numbers" not in taken.out
    pipeline = load_pipeline(tmp_path / "one.pipeline.yaml")
    assert pipeline.source.csv.nulls == ("", "oops") and pipeline.shards.encoder.numeric == ("x",)
    checked = headway("contract", "check", "one.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_two_classes_written_with_a_fraction_are_said_to_be_drafted_as_a_number(
    headway: Headway, tmp_path: Path
) -> None:
    rows = "".join(f"{n % 90}.25,{'' if n == 7 else n % 2 / 1}\n" for n in range(NUM_ROWS))
    (tmp_path / "rows.csv").write_text(f"x,paid\n{rows}")
    drafted = headway("contract", "init", "rows.csv", "--label", "paid")
    assert drafted.code == 0, drafted.err
    assert "two values   paid is 0 or 1, and has fractions. If these are classes, write them as whole" in drafted.out


@pytest.mark.process
def test_few_whole_numbers_are_said_to_be_drafted_as_a_number_and_are_classes_as_it_says(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("x,kind\n" + "".join(f"{n % 17}.25,{n % 3 + 1}\n" for n in range(40)))
    drafted = headway("contract", "init", "rows.csv", "--label", "kind")
    assert "few values   kind has 3 whole numbers, 1 to 3, and is drafted as a number. If these are" in drafted.out
    pipeline = tmp_path / "rows.pipeline.yaml"
    text = pipeline.read_text().replace("label_kind: number", "label_kind: class")
    pipeline.write_text(text.replace("tabular-regressor", "tabular-classifier"))
    checked = headway("contract", "check", "rows.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
def test_files_that_are_neither_table_nor_text_are_refused_and_texts_are_said_to_be_taken_for_such(
    headway: Headway, tmp_path: Path
) -> None:
    for name in ("a", "b", "mixed"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/sales.xlsx").write_bytes(b"PK\x03\x04\xff\xfe\x80")
    refused = headway("contract", "init", "a", "--name", "a")
    assert refused.code != 0 and "sales.xlsx is no table and no UTF-8 text" in refused.err
    assert "Save a table as CSV or Parquet" in refused.err and not (tmp_path / "a.contract.yaml").exists()
    (tmp_path / "b/one.txt").write_text("words\n")
    assert "model        a language model of texts, for 1 file of no table" in headway("contract", "init", "b").out
    (tmp_path / "mixed/x.txt").write_bytes(b"\xff")
    (tmp_path / "mixed/y.txt").write_text("words\n")
    assert headway("contract", "init", "mixed").code == 0


@pytest.mark.process
def test_moments_that_are_texts_are_told_how_to_be_read_and_then_are(headway: Headway, tmp_path: Path) -> None:
    rows = "".join(
        f'{{"at": "2026-01-{n % 28 + 1:02}T00:{n % 60:02}:{n // 60:02}", "x": {n % 7}}}\n' for n in range(99)
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    drafted = headway("contract", "init", "rows.jsonl")
    assert "as a date or timestamp, by `source.column_types`, it would be read" in drafted.out
    table = pa.Table.from_pylist([json.loads(row) for row in rows.splitlines()])
    pq.write_table(table, tmp_path / "typed.parquet")
    drafted = headway("contract", "init", "typed.parquet")
    assert "as a date or timestamp, which the files themselves have to say, it would be read" in drafted.out
    for name in ("rows.pipeline.yaml", "rows.contract.yaml"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("at: string", "at: timestamp[us]"))
    spec = load_pipeline(tmp_path / "rows.pipeline.yaml")
    assert spec.source.column_types["at"] == "timestamp[us]"
    taken = take_snapshot(spec.source, base=tmp_path, cache=DigestCache(tmp_path / "digests"))
    assert taken.columns["at"] == "timestamp[us]"


@pytest.mark.process
def test_a_first_line_that_looks_like_a_row_is_said(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("".join(f"{n}.5,{n % 7},{n % 2}\n" for n in range(9, NUM_ROWS)))
    drafted = headway("contract", "init", "rows.csv")
    assert drafted.code == 0, drafted.err
    assert "the first line names columns 9.5, 2, 1: if it is a row, write names above it, draft anew" in drafted.out
    (tmp_path / "twice.csv").write_text("1,1\n0,1\n")
    refused = headway("contract", "init", "twice.csv")
    assert "of delimited text the first line has to hold the names" in refused.err


@pytest.mark.process
def test_row_numbers_that_pandas_wrote_under_no_name_are_passed_over_and_it_is_said(
    headway: Headway, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(",x,target\n" + "".join(f"{n},{n % 50}.5,{n % 2}\n" for n in range(NUM_ROWS)))
    drafted = headway("contract", "init", "rows.csv")
    assert drafted.code == 0, drafted.err
    assert "the first column has no name, as pandas writes row numbers: it is passed over" in drafted.out
    assert list(load_contract(tmp_path / "rows.contract.yaml").columns) == ["x", "target"]
    checked = headway("contract", "check", "rows.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x" * 300], "the name is too long for a file"),
        (["a.csv", "--out", f"{'x' * 300}.contract.yaml"], "the name is too long for a file"),
        (["a.csv", "--out", "s3://bucket/a.contract.yaml"], "is a URI"),
        (["a.csv", "--skip-rows", f"{10**20}"], "is more than 2,147,483,647 lines"),
        ([""], "the name is empty"),
    ],
)
def test_a_name_that_cannot_be_one_is_said_and_nothing_is_written(
    headway: Headway, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.csv").write_text("x,target\n1,0\n")
    refused = headway("contract", "init", *arguments)
    assert refused.code == 2 and message in refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]
