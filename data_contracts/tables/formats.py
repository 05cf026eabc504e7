"""The formats of tables, asked in one manner: columns of a file, and its rows in columns that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.tables.csv_files import csv_batches, csv_columns, csv_names
from headway.data_contracts.tables.json_files import json_batches, json_columns
from headway.data_contracts.tables.parquet_files import read_batches
from headway.data_contracts.tables.source_spec import SourceSpec

if TYPE_CHECKING:
    import pyarrow as pa


def inferred_columns(
    spec: SourceSpec, path: Path, where: str, declared: Mapping[str, str], valueless: str = ""
) -> dict[str, str]:
    """Columns of a file without a schema of its own, from its whole text and the declared types.

    Args:
        valueless: the type of a column without a value, in place of a refusal.
    """
    match spec.format:
        case "csv":
            return csv_columns(path, where, spec.csv, declared, valueless)
        case "json-lines":
            return json_columns(path, where, declared, valueless=valueless)
        case "parquet" | "text-files":
            raise AssertionError(f"files of format {spec.format} say their columns themselves, or have none")


def named_columns(spec: SourceSpec, path: Path, where: str) -> list[str] | None:
    """The columns that a file says it has; None of a format in which every line says so for itself."""
    return csv_names(path, where, spec.csv) if spec.format == "csv" else None


def file_batches(spec: SourceSpec, path: Path, where: str, columns: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file in its order; of `columns`, those that the file has."""
    match spec.format:
        case "parquet":
            return read_batches(path, where)
        case "csv":
            held = {name: columns[name] for name in csv_names(path, where, spec.csv) if name in columns}
            return csv_batches(path, where, spec.csv, held)
        case "json-lines":
            return json_batches(path, where, columns)
        case "text-files":
            raise AssertionError("a file of text is one row, which is read whole")


def reading_options(spec: SourceSpec) -> dict[str, Any]:
    """What, besides its bytes, the format and the columns' types, decides which rows come out of a file."""
    return spec.csv.model_dump(mode="json") if spec.format == "csv" else {}
