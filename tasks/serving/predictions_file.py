"""Predictions as a file, which appears whole or not at all: Parquet, CSV or JSON lines, by its name."""

from __future__ import annotations

import contextlib
import glob
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.leftovers import MACHINE, STAGING_SUFFIX, discard_if_abandoned
from headway.data_contracts.store.publication import Workspace

Write = Callable[[pa.RecordBatch], object]
FORMATS = (".parquet", ".csv", ".jsonl")


def require_target(out: Path, *, overwrite: bool, source: Path | None = None) -> None:
    """Check where predictions are to go.

    Args:
        source: the file of rows, where it is local.

    Raises:
        ConfigError: its name says no format, its folder is not there, it exists and may not be replaced, or it is the
            file of rows itself.
    """
    if out.suffix not in FORMATS:
        raise ConfigError("its name says no format.", where=str(out), advice=f"It ends in {', '.join(FORMATS)}.")
    if not out.parent.is_dir():
        raise ConfigError("there is no such folder.", where=str(out.parent), advice="Make it, or name another --out.")
    if out.exists() and not out.is_file():
        # A pipe or a device, too: what is written takes its name.
        raise ConfigError(f"is {'a folder' if out.is_dir() else 'no file'}.", where=str(out), advice="Name a file.")
    if source is not None and out.exists() and source.exists() and out.samefile(source):
        # Predictions hold no inputs: rows that they replaced would be gone.
        raise ConfigError("is the file of rows itself.", where=str(out), advice="Name another --out.")
    if out.exists() and not overwrite:
        raise _exists(out)


@contextlib.contextmanager
def written(out: Path, schema: pa.Schema, *, overwrite: bool) -> Iterator[Write]:
    """What writes a batch of this schema; the file has its name when the body has ended well.

    Raises:
        ConfigError: another program has made it meanwhile, and it may not be replaced.
        EnvironmentProblem: it cannot be written.
    """
    # What predictions that were killed left here.
    for left in out.parent.glob(f".{glob.escape(out.name)}.{MACHINE}-*{STAGING_SUFFIX}"):
        discard_if_abandoned(left)
    try:
        # The writer is the inner one: it is closed before the file gets its name.
        with (
            Workspace(str(out.parent)).staged(out.name, exclusive=not overwrite) as staging,
            _writer(staging, out.suffix, schema) as write,
        ):
            yield write
    except FileExistsError as error:
        raise _exists(out) from error
    except OSError as error:
        raise EnvironmentProblem(f"cannot be written ({error.strerror or error}).", where=str(out)) from error


@contextlib.contextmanager
def _writer(path: Path, suffix: str, schema: pa.Schema) -> Iterator[Write]:
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
            yield parquet.write_batch
    elif suffix == ".csv":
        from pyarrow import csv

        with csv.CSVWriter(path, schema) as values:
            yield values.write_batch
    else:
        with path.open("wb") as stream:
            yield lambda batch: stream.writelines(_json_lines(batch))


def _json_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    columns = [_json_values(column) for column in batch.columns]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield json.dumps(dict(zip(names, values, strict=True)), default=str, ensure_ascii=False).encode() + b"\n"


def _json_values(column: pa.Array) -> list[Any]:
    """Of floats the shortest decimals that mean the same; what JSON has no number for is null."""
    if not types.is_floating(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    texts = column.cast(pa.string()).to_pylist()
    values = (None if text is None else float(text) for text in texts)
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _exists(out: Path) -> ConfigError:
    return ConfigError("exists already.", where=str(out), advice="Name another --out, or say --overwrite.")
