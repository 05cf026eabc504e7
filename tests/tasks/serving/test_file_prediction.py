"""A file of predictions is whole, says what answered, and is there only when every row of the file was predicted."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.store.errors import ConfigError, DataError, HeadwayError
from headway.data_contracts.tables.source_spec import CsvOptions
from headway.tasks.serving.file_prediction import Predicted, predict_file
from tests.tasks.table_model import COLUMNS, table_model

ROWS = {"id": ["a7", "b8"], **COLUMNS, "unread": [None, None]}
MODEL = {"model": "toy", "model_version": "1", "model_sha256": "0" * 64}
PREDICTED = [{"id": name, "prediction": age, **MODEL} for name, age in (("a7", 30.0), ("b8", 40.0))]


def predicted(folder: Path, name: str, out: str, **options: Any) -> Predicted:
    return predict_file(options.pop("model", table_model()), name, folder / out, base=folder, **options)


def parquet(folder: Path, rows: dict[str, Any], name: str = "rows.parquet") -> str:
    pq.write_table(pa.table(rows), folder / name)
    return name


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    types = {name: pa.string() for name in MODEL}
    table = pyarrow.csv.read_csv(path, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
    return table.to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.jsonl"])
def test_each_row_is_named_by_its_key_and_says_which_model_answered(tmp_path: Path, out: str) -> None:
    made = predicted(tmp_path, parquet(tmp_path, ROWS), out, key=("id",))
    assert rows_of(tmp_path / out) == PREDICTED
    assert (made.num_rows, made.key, made.sha256) == (2, ("id",), MODEL["model_sha256"])
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", out}
    if out == "out.parquet":
        metadata = pq.read_schema(tmp_path / out).metadata
        assert {f"headway.{name}".encode(): value.encode() for name, value in MODEL.items()}.items() <= metadata.items()


def test_without_a_key_a_row_is_named_by_its_number_and_the_usual_key_counts_where_the_file_has_it(
    tmp_path: Path,
) -> None:
    name = parquet(tmp_path, ROWS)
    for number, (usual, key) in enumerate(((("id",), ["id"]), (("id", "day"), ["row"]), ((), ["row"]))):
        predicted(tmp_path, name, f"{number}.parquet", usual_key=usual)
        assert pq.read_table(tmp_path / f"{number}.parquet").column_names == [*key, "prediction", *MODEL]
    assert pq.read_table(tmp_path / "2.parquet")["row"].to_pylist() == [0, 1]


LINES = "id,age,grade,plan,unread\na7,30,1,pro,\nb8,40,3,basic,\n"
FILES = {
    "rows.csv": LINES.encode(),
    "rows.csv.gz": gzip.compress(LINES.encode()),
    "semicolons.csv": LINES.replace(",", ";").encode(),
    "rows.tsv": LINES.replace(",", "\t").encode(),
    # A whole number with a gap, as pandas writes it, and nulls in training's own spelling.
    "pandas.csv": b'"",id,age,grade,plan\n0,a7,30,1.0,pro\n1,b8,40,3.0,basic\n',
    "rows.jsonl": b'{"id":"a7","age":30,"grade":1,"plan":"pro","unread":null}\n'
    b'{"id":"b8","age":40.0,"grade":3,"plan":"basic"}\n',
}


@pytest.mark.process
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_sources_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    predicted(tmp_path, name, "out.parquet", key=("id",))
    assert rows_of(tmp_path / "out.parquet") == PREDICTED


@pytest.mark.process
def test_marks_of_numbers_are_those_of_the_file_and_not_of_training(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("people of 2025\nage;grade;plan\n1,234;1;pro\n30,5;3;pro\n")
    predicted(tmp_path, "rows.csv", "out.jsonl", csv=CsvOptions(thousands=",", skip_rows=3))
    assert [each["prediction"] for each in rows_of(tmp_path / "out.jsonl")] == pytest.approx([1.234, 30.5])
    (tmp_path / "rows.csv").write_text("age;grade;plan\n1,234;1;pro\n2,345;3;pro\n")
    with pytest.raises(DataError, match="column `age`: a value is no double"):
        predicted(tmp_path, "rows.csv", "unclear.jsonl")


@pytest.mark.process
@pytest.mark.parametrize(
    ("trained", "written", "delimiter", "text"),
    [
        ("cp1252", "utf-8", ",", "é7"),
        ("cp1252", "utf-8-sig", ";", "é7"),
        ("cp1252", "cp1252", ";", "é7"),
        ("cp1251", "cp1251", ";", "Москва"),
        ("shift_jis", "utf-16", ";", "東京"),
    ],
)
def test_letters_are_those_of_the_file(tmp_path: Path, trained: str, written: str, delimiter: str, text: str) -> None:
    lines = f"id,age,grade,plan\n{text},30,1,pro\n".replace(",", delimiter)
    (tmp_path / "rows.csv").write_bytes(lines.encode(written))
    predicted(tmp_path, "rows.csv", "out.jsonl", csv=CsvOptions(encoding=trained), key=("id",))
    assert [each["id"] for each in rows_of(tmp_path / "out.jsonl")] == [text]


@pytest.mark.process
def test_nulls_are_spelt_as_in_training_and_predicted_as_null_on_request(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("age,grade,plan\n30,1,pro\nNA,NA,NA\n40,NA,pro\n")
    options = CsvOptions(nulls=("NA",))
    with pytest.raises(DataError, match="column 'age' is null or NaN in row 1") as refused:
        predicted(tmp_path, "rows.csv", "out.jsonl", csv=options)
    assert refused.value.where == "rows.csv" and "--on-missing null" in refused.value.advice
    made = predicted(tmp_path, "rows.csv", "out.jsonl", csv=options, on_missing="null")
    assert [each["prediction"] for each in rows_of(tmp_path / "out.jsonl")] == [30.0, None, 40.0]
    assert (made.num_rows, made.num_null) == (3, 1)


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age,grade\n30,1\n", "there is no column 'plan'; there are age, grade"),
        ("age,grade,plan\n30,1,pro\nmany,1,pro\n", "column `age`: a value is no double. Of 2 rows, 1 cannot be read"),
        ("age,grade,plan\n30,1,pro\n40,B,pro\n", "column `grade`: a value is no int64."),
        ("age,grade,plan\n30,1,pro\n40,1.5,pro\n", "whole numbers, and holds another in row 1"),
        ("age,grade,plan\n30,1,pro\n40,1\n", "the row has 2 values, not 3"),
        ("age,grade,plan\n30,1,pro\n1e200,1,pro\n", "column 'age' is too large a number .* in row 1"),
    ],
    ids=["missing column", "no number", "no whole number", "fraction", "ragged", "too large"],
)
def test_a_file_that_cannot_be_predicted_is_refused_in_a_sentence_and_nothing_is_written(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match=words) as refused:
        predicted(tmp_path, "rows.csv", "out.csv")
    assert refused.value.where.startswith("rows.csv") and refused.value.advice
    assert "source." not in refused.value.advice and "contract" not in refused.value.advice
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("file", "out", "options", "words"),
    [
        ("rows.parquet", "out.txt", {}, "its name says no format"),
        ("rows.parquet", "none/out.csv", {}, "no such folder"),
        ("rows.parquet", "taken.csv", {}, "exists already"),
        ("rows.parquet", "out.csv", {"key": ("day",)}, "has no column 'day'"),
        ("rows.parquet", "out.csv", {"key": ("model",)}, "is called like one of the predictions"),
        ("rows.parquet", "out.csv", {"key": ("list",)}, "which no key is"),
        ("notes.txt", "out.csv", {}, "is no file of a table"),
        (".", "out.csv", {}, "is no file"),
        ("gone.csv", "out.csv", {}, "is no file"),
    ],
)
def test_what_cannot_be_is_refused_before_a_row_is_read(
    tmp_path: Path, file: str, out: str, options: dict[str, Any], words: str
) -> None:
    parquet(tmp_path, {**ROWS, "model": ["x", "y"], "list": [[1], [2]]})
    for name in ("taken.csv", "notes.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(HeadwayError, match=words) as refused:
        predicted(tmp_path, file, out, **options)
    assert refused.value.advice
    assert (tmp_path / "taken.csv").read_text() == "mine" and not (tmp_path / "out.csv").exists()


def test_a_file_is_replaced_on_request_alone_and_only_by_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("mine")
    bad = parquet(tmp_path, {**ROWS, "age": [30.0, None]}, "bad.parquet")
    with pytest.raises(DataError, match="row 1"):
        predicted(tmp_path, bad, "out.csv", overwrite=True)
    assert (tmp_path / "out.csv").read_text() == "mine"
    predicted(tmp_path, parquet(tmp_path, ROWS), "out.csv", overwrite=True, key=("id",))
    assert rows_of(tmp_path / "out.csv") == PREDICTED
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ConfigError, match=r"pipe\.csv: is no file"):
        predicted(tmp_path, bad, "pipe.csv", overwrite=True)


@pytest.mark.parametrize("name", ["rows.parquet", "./rows.parquet", "file://{folder}/rows.parquet", "link.parquet"])
def test_rows_are_never_replaced_by_their_own_predictions(tmp_path: Path, name: str) -> None:
    parquet(tmp_path, ROWS)
    before = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "link.parquet").symlink_to("rows.parquet")
    with pytest.raises(ConfigError, match="the file of rows itself"):
        predicted(tmp_path, name.format(folder=tmp_path), "rows.parquet", overwrite=True)
    assert (tmp_path / "rows.parquet").read_bytes() == before


def test_a_file_that_another_wrote_meanwhile_stays(tmp_path: Path) -> None:
    name = parquet(tmp_path, ROWS)
    with pytest.raises(ConfigError, match="exists already"):
        predicted(tmp_path, name, "out.csv", on_rows=lambda *_: (tmp_path / "out.csv").write_text("another's"))
    assert (tmp_path / "out.csv").read_text() == "another's"


def test_memory_does_not_grow_with_the_file_and_rows_are_counted_on_over_batches(tmp_path: Path) -> None:
    num_rows, batch_rows = 400_000, 20_000
    batch = pa.table(
        {
            "id": pa.array(np.arange(batch_rows)).cast(pa.string()),
            "age": np.arange(batch_rows, dtype=np.float64),
            "grade": np.ones(batch_rows, np.int64),
            "plan": pa.repeat("pro", batch_rows),
            "unread": pa.repeat("x" * 200, batch_rows),
        }
    )
    with pq.ParquetWriter(tmp_path / "rows.parquet", batch.schema) as writer:
        for _ in range(num_rows // batch_rows):
            writer.write_table(batch)
    shown: list[tuple[int, int]] = []
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        predicted(tmp_path, "rows.parquet", "out.parquet", on_rows=lambda *done: shown.append(done))
        python_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    rows_bytes = num_rows // batch_rows * batch.nbytes
    assert rows_bytes > 80e6 and pool.max_memory() + python_bytes < rows_bytes / 2
    assert shown[0] == (0, num_rows) and shown[-1] == (num_rows, num_rows) and len(shown) > 5
    made = pq.ParquetFile(tmp_path / "out.parquet").read(["row"])["row"]
    assert (made.to_numpy() == np.arange(num_rows)).all()


NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 2, 4], dtype=np.int32).tobytes()), pa.py_buffer(b"\xff\xfeab")]
)
KEYS = {
    "no UTF-8": NOT_UTF8,
    "a day beyond the calendar": pa.array([(1 << 31) - 1, -(1 << 31)], pa.date32()),
    "a moment beyond the calendar": pa.array([1 << 62, -(1 << 62)], pa.timestamp("us")),
    "a zone that is none": pa.array([1, 2], pa.timestamp("us", tz="Not/AZone")),
}


@pytest.mark.parametrize("ids", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("out", ["out.parquet", "out.csv", "out.jsonl"])
def test_a_key_that_cannot_be_written_is_named_or_written_and_never_a_defect(
    tmp_path: Path, ids: pa.Array, out: str
) -> None:
    name = parquet(tmp_path, {**ROWS, "id": ids})
    try:
        predicted(tmp_path, name, out, key=("id",))
    except DataError as error:
        assert "id" in error.what and error.where == name
        assert not (tmp_path / out).exists()
    else:
        assert ids is not NOT_UTF8
