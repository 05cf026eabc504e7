"""A file of rows to predict: whatever format sources have, in the types that its values have, a batch at a time."""

from __future__ import annotations

import codecs
import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as types
from pydantic import ValidationError

from headway.data_contracts.sources.inference import TABLES, guess_source
from headway.data_contracts.sources.locations import is_remote
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.places import at_home
from headway.data_contracts.tables import text_table_reader
from headway.data_contracts.tables.decompressed import opened
from headway.data_contracts.tables.formats import named_columns
from headway.data_contracts.tables.parquet_files import pieces, read_batches, reading
from headway.data_contracts.tables.source_errors import reading_remote
from headway.data_contracts.tables.source_spec import CsvOptions, SourceSpec
from headway.data_contracts.types.column_types import UnknownType, arrow_type, type_name
from headway.tasks.serving.rows_to_predict import ROWS, require_readable

CORRECT = "Correct the file, and give the command again."


class RowsOfFile(NamedTuple):
    num_rows: int
    types: Mapping[str, pa.DataType]
    """Of the columns that the model reads, and of the key's, by name."""
    batches: Iterator[pa.RecordBatch]
    key: tuple[str, ...]
    """Columns that name a row; none: its number does."""


@contextlib.contextmanager
def rows_of_file(
    file: str,
    fitted_types: Mapping[str, pa.DataType],
    *,
    base: Path,
    csv: CsvOptions,
    key: tuple[str, ...] | None = None,
    usual_key: tuple[str, ...] = (),
) -> Iterator[RowsOfFile]:
    """The rows of a file that has every column that the model reads, as it reads them.

    Args:
        file: a path or URI.
        base: the folder that relative paths start from.
        csv: how the files of training were read: another delimiter is found out.
        key: columns that name a row, which the file must have; None: the usual ones if it has them, else none.

    Raises:
        ConfigError: no file of a table, or a column of the key is not there.
        DataError: it cannot be read; a column is missing or of another kind; a row cannot be read.
    """
    with contextlib.ExitStack() as scratch:
        folder = scratch.enter_context(scratch_folder("headway-predict-"))
        spec, path = _found(file, base, csv, fitted_types, folder)
        needed = {*fitted_types, *(key or ()), *usual_key}
        with _advising_the_user(file):
            known = _columns(spec, path, file, fitted_types, needed)
            names = usual_key if key is None and {*usual_key} <= {*known} else key or ()
            _require_key(known, names, file)
            held = {name: kind for name, kind in known.items() if name in {*fitted_types, *names}}
            require_readable(pa.schema([*held.items()]), fitted_types)
            if spec.is_text_table:
                # Of JSON lines a key that is none of the columns would be refused.
                path = _as_parquet(spec, path, file, held if spec.format == "csv" else known, folder)
            with reading(file), pq.ParquetFile(path) as rows:
                num_rows = rows.metadata.num_rows
        yield RowsOfFile(num_rows, held, _batches(path, file, [*held]), names)


def local_file(file: str, *, base: Path) -> Path | None:
    """Where a file lies that a person named by path or URI; None: elsewhere."""
    plain = file.removeprefix("file://").removeprefix("local://")
    return None if is_remote(plain) else base / at_home(plain)


def _batches(path: Path, file: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with _advising_the_user(file):
        for batch in read_batches(path, file, columns):
            yield from pieces(batch)


def _found(file: str, base: Path, csv: CsvOptions, names: Collection[str], folder: Path) -> tuple[SourceSpec, Path]:
    """How the file is read, and where it lies on this machine.

    Args:
        names: of columns that it should have.
    """
    here = local_file(file, base=base)
    if here is not None and not here.is_file():
        raise ConfigError("is no file.", where=file, advice="Give a file, or the URI of one.")
    guessed = guess_source(file, base=base)
    spec = guessed.spec
    if not spec.is_table or not guessed.only_file:
        raise ConfigError("is no file of a table.", where=file, advice=f"Its name ends in {', '.join(TABLES)}.")
    path = here or folder / guessed.only_file
    if here is None:
        with reading_remote(file), fsspec.open(file, "rb") as stream, path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)
    if spec.format == "csv":
        if csv.encoding not in UNICODE:
            shown = {"encoding": _encoding(path, file, csv, spec.csv)}
            csv, spec = csv.model_copy(update=shown), spec.model_copy(update={"csv": spec.csv.model_copy(update=shown)})
        as_trained = spec.model_copy(update={"csv": csv, "column_types": {}})
        is_clear = not guessed.unclear_numbers or csv.decimal == spec.csv.delimiter
        as_guessed = as_trained.model_copy(update={"csv": _as_guessed(csv, spec.csv, is_clear=is_clear)})
        spec = as_trained if _divides(as_trained, path, file, names) else as_guessed
    return spec, path


UNICODE = ("utf-8", "utf-16")
CHUNK_BYTES = 1 << 20


def _encoding(path: Path, file: str, trained: CsvOptions, guessed: CsvOptions) -> str:
    """Of a file for a model whose rows were in an older encoding, in which any bytes are some text or other."""
    if guessed.encoding == "utf-16":
        return guessed.encoding
    decoder, has_others = codecs.getincrementaldecoder("utf-8")(), False
    try:
        with opened(path, file) as stream:
            while data := stream.read(CHUNK_BYTES):
                has_others |= not data.isascii()
                decoder.decode(data)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return trained.encoding
    # What is UTF-8 by chance has been seen by nobody; letters of ASCII alone are the same in both.
    return "utf-8" if has_others else trained.encoding


MARKS = ("decimal", "thousands")
SHOWN = ("delimiter", "encoding", "skip_rows", *MARKS)
"""What a file's first lines tell. A unit is the model's: without its unit, no number is one that it was trained on."""


def _as_guessed(trained: CsvOptions, guessed: CsvOptions, *, is_clear: bool) -> CsvOptions:
    """As the model's rows were read, but for what the file itself shows.

    Args:
        is_clear: whether it shows how its numbers are written.
    """
    shown = {name: getattr(guessed, name) for name in SHOWN if is_clear or name not in MARKS}
    try:
        # Checked again: a comma that parts both fractions and thousands would read 1,234 as either.
        return CsvOptions.model_validate({**trained.model_dump(), **shown})
    except ValidationError:
        return trained


def _divides(spec: SourceSpec, path: Path, file: str, names: Collection[str]) -> bool:
    """Whether the header is one of these columns, read so: with another delimiter it is a single name."""
    try:
        return {*names} <= {*(named_columns(spec, path, file) or ())}
    except DataError:
        return False


def _columns(
    spec: SourceSpec, path: Path, file: str, fitted_types: Mapping[str, pa.DataType], needed: Collection[str]
) -> dict[str, pa.DataType]:
    """Types of columns that the file has, the needed ones among them: what values are, or the model wants of them."""
    if spec.format == "parquet":
        # As values are stored: no model was fitted to an extension type, such as that of a UUID.
        with reading(file), pq.ParquetFile(path, arrow_extensions_enabled=False) as rows:
            schema = rows.schema_arrow
            require_readable(pa.schema([(name, pa.null()) for name in schema.names]), fitted_types)
            return {field.name: _plain(field.type) for field in schema if field.name in needed}
    declared = {}
    if (names := named_columns(spec, path, file)) is not None:
        # Known from the header, before the whole file is read; and no type is looked for where none is wanted.
        require_readable(pa.schema([(name, pa.null()) for name in names]), fitted_types)
        texts = {name for name, kind in fitted_types.items() if types.is_string(kind)}
        declared = {name: "string" for name in names if name in texts or name not in needed}
    found = text_table_reader.inferred_columns(spec, path, file, declared, keeps_bad=False, valueless="string")
    known = {name: arrow_type(kind) for name, kind in found.items()}
    if spec.format == "csv":
        for name, wanted in fitted_types.items():
            # A cell that is no number, or no value at all: read as what is wanted, such a row is named.
            known[name] = wanted if types.is_string(known[name]) else known[name]
    return known


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that stands for all of the same values; one that rows cannot have is itself."""
    try:
        return arrow_type(type_name(kind))
    except UnknownType:
        return kind


def _require_key(known: Mapping[str, pa.DataType], key: tuple[str, ...], file: str) -> None:
    for name in key:
        if name not in known:
            raise ConfigError(f"has no column {name!r}.", where=file, advice="Name another with --key, or none.")
        kind = known[name]
        if types.is_nested(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind):
            raise ConfigError(
                f"column {name!r} is {kind}, which no key is.", where=file, advice="Name another with --key."
            )


def _as_parquet(spec: SourceSpec, path: Path, file: str, columns: Mapping[str, pa.DataType], folder: Path) -> Path:
    """The file's rows in these columns alone; parsed in a process of its own, whose memory is bounded."""
    target = folder / "rows.parquet"
    held = {name: type_name(kind) for name, kind in columns.items()}
    text_table_reader.convert(spec, path, file, held, target, keeps_bad=False)
    return target


@contextlib.contextmanager
def _advising_the_user(file: str) -> Iterator[None]:
    """Advice for who has rows to predict: what readers of tables advise is for who keeps a pipeline."""
    try:
        yield
    except DataError as error:
        where = file if error.where == ROWS else error.where
        is_for_pipelines = any(word in error.advice for word in ("source.", "contract"))
        raise DataError(error.what, where=where, advice=CORRECT if is_for_pipelines else error.advice) from error
