"""A file of rows in, a file of predictions out, a batch at a time: how long the file is, memory does not say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, DataError, shortened
from headway.data_contracts.tables.source_spec import CsvOptions
from headway.tasks.serving.prediction import MISSING, OnMissing, TableModel
from headway.tasks.serving.predictions_file import require_target, written
from headway.tasks.serving.rows_to_predict import ROWS
from headway.tasks.serving.source_file import RowsOfFile, local_file, rows_of_file

ROW = "row"
MODEL_COLUMNS = ("model", "model_version", "model_sha256")
"""In every row, so that it says what answered wherever it goes. Parquet's metadata has them too, `headway.` ahead."""
MAX_CELLS = 1 << 22
"""Numbers of a batch: what goes into the model and comes out of it, all rows together."""
ON_MISSING = "Fill it in, leave such rows out, or say `--on-missing null`, which predicts null for them."
COUNTED = "Rows are counted from 0, without the header."


class Predicted(Frozen):
    """What was written."""

    out: str
    num_rows: int
    num_null: int
    """Rows without a prediction."""
    key: tuple[str, ...]
    """Columns that name a row; none: column `row` does."""
    model: str
    version: str
    sha256: str
    """Digest of the model's registration."""


def predict_file(
    model: TableModel,
    file: str,
    out: Path,
    *,
    base: Path,
    csv: CsvOptions | None = None,
    key: tuple[str, ...] | None = None,
    usual_key: tuple[str, ...] = (),
    on_missing: OnMissing = "refuse",
    overwrite: bool = False,
    on_rows: Callable[[int, int], object] = lambda _done, _total: None,
) -> Predicted:
    """Predict every row of a file, in its order.

    Args:
        file, base, csv, key, usual_key: as of `rows_of_file`.
        out: a file that ends in .parquet, .csv or .jsonl.
        on_missing: as of `TableModel.predict`.
        on_rows: told after each batch how many rows are done, and of how many.

    Raises:
        ConfigError: the target exists, or is none; `file` is none; a recipe of your own.
        DataError: the rows cannot be read, or one cannot be predicted. Then nothing was written.
        EnvironmentProblem: the target cannot be written.
    """
    require_target(out, overwrite=overwrite, source=local_file(file, base=base))
    model.require_recipe()
    options = csv or CsvOptions()
    with rows_of_file(file, model.fitted_types, base=base, csv=options, key=key, usual_key=usual_key) as rows:
        schema = _schema(model, rows, file)
        done = num_null = 0
        with written(out, schema, overwrite=overwrite) as write:
            on_rows(0, rows.num_rows)
            for batch in _small(rows.batches, len(model.fitted_types) + len(model.classes)):
                with _naming(file):
                    table = pa.Table.from_batches([batch])
                    made = model.predict(table, on_missing=on_missing, first_row=done)
                with _naming_the_key(file, rows.key):
                    write(_batch(batch, made, model, rows.key, schema, done))
                num_null += made["prediction"].null_count
                done += batch.num_rows
                on_rows(done, rows.num_rows)
    name, version, sha256 = model.version
    return Predicted(
        out=str(out), num_rows=done, num_null=num_null, key=rows.key, model=name, version=version, sha256=sha256
    )


def _small(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    num_rows = max(1, MAX_CELLS // width)
    for batch in batches:
        for first in range(0, batch.num_rows, num_rows):
            yield batch.slice(first, num_rows)


def _schema(model: TableModel, rows: RowsOfFile, file: str) -> pa.Schema:
    """Raises `ConfigError`: a column of the key is called like one of ours."""
    # What holds nulls alone has no type in Parquet, and has to have one in what is written.
    kinds = {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in rows.types.items()}
    names = [pa.field(name, kinds[name]) for name in rows.key] or [pa.field(ROW, pa.int64())]
    # Of no row: its columns are those of any.
    nothing = pa.schema([(name, kind) for name, kind in model.fitted_types.items()]).empty_table()
    predicted = [*model.predict(nothing).schema]
    made_by = [pa.field(name, pa.string()) for name in MODEL_COLUMNS]
    taken = {field.name for field in (*predicted, *made_by)}
    if clash := next((name for name in rows.key if name in taken), ""):
        raise ConfigError(
            f"column {clash!r} of the key is called like one of the predictions.",
            where=file,
            advice="Name another with --key, or call it otherwise in the file.",
        )
    metadata = {f"headway.{name}": value for name, value in zip(MODEL_COLUMNS, model.version, strict=True)}
    return pa.schema([*names, *predicted, *made_by], metadata=metadata)


def _batch(
    batch: pa.RecordBatch, made: pa.Table, model: TableModel, key: tuple[str, ...], schema: pa.Schema, first_row: int
) -> pa.RecordBatch:
    num_rows = batch.num_rows
    named = [batch.column(name) for name in key] or [pa.array(range(first_row, first_row + num_rows), pa.int64())]
    predicted = [column.combine_chunks() for column in made.columns]
    made_by = [pa.repeat(pa.scalar(value, pa.string()), num_rows) for value in model.version]
    arrays = [*named, *predicted, *made_by]
    for column in named:
        column.validate(full=True)  # Parquet's writers put what they like where UTF-8 belongs
    # A dictionary of texts in the file is texts here, whatever the writer of the file chose.
    typed = [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)


@contextlib.contextmanager
def _naming_the_key(file: str, key: tuple[str, ...]) -> Iterator[None]:
    """Raises `DataError`: what names rows cannot be written, such as a day after the year 9999, or no UTF-8."""
    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError, KeyError) as error:
        message = shortened(" ".join(str(error).split()), 200)
        raise DataError(
            f"a value of the key ({', '.join(key) or ROW}) cannot be written ({message}).",
            where=file,
            advice="Name another column with --key, or correct the file.",
        ) from error


@contextlib.contextmanager
def _naming(file: str) -> Iterator[None]:
    """What is wrong with rows, said of the file that they come from."""
    try:
        yield
    except DataError as error:
        if error.where != ROWS:
            raise
        advice = ON_MISSING if error.advice == MISSING else error.advice
        raise DataError(error.what, where=file, advice=f"{advice} {COUNTED}") from error
