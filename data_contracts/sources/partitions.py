"""Columns that folders' names hold, as in `date=2026-01-01/part.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.source_errors import refused_column
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.types.column_types import arrow_type

# What Hive and Spark write for a null.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def partition_values(path: str) -> dict[str, str | None]:
    """Texts by column of a file's folders, outermost first; the file's own name holds none.

    Raises:
        DataError: one column twice.
    """
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, separator, value = folder.partition("=")
        # Writers percent-encode what a folder's name cannot hold, in names as in values.
        name = unquote(name)
        if not separator or not name:
            continue
        if name in found:
            raise refused_column(path, name, "two folders of the path hold it")
        found[name] = None if value == NULL_PARTITION else unquote(value)
    return found


def folder_values(spec: SourceSpec, path: str) -> dict[str, str | None]:
    """`partition_values` where the source has its folders' names for columns; else none."""
    return partition_values(path) if spec.is_table and spec.partitions else {}


def partition_columns(paths: Mapping[str, Mapping[str, str | None]], types: Mapping[str, str]) -> dict[str, str]:
    """Type by name of the columns that the folders hold: as declared, or string.

    Args:
        paths: the texts of each file's folders, by path.

    Raises:
        DataError: two files lie in folders with other columns, or a text is not of the declared type.
    """
    first = next(iter(paths))
    columns = {name: types.get(name, "string") for name in paths[first]}
    for path, values in paths.items():
        if set(values) != set(columns):
            raise DataError(
                f"its folders hold the columns {sorted(values)}, those of {first} hold {sorted(columns)}.",
                where=path,
                advice="Lay all files out alike, exclude it, or set `source.partitions: false`.",
            )
        for name, text in values.items():
            _check_value(path, name, text, columns[name])
    return columns


def _check_value(path: str, name: str, text: str | None, kind: str) -> None:
    import pyarrow as pa

    try:
        pa.scalar(text, pa.string()).cast(arrow_type(kind))
    except (pa.ArrowException, ValueError) as error:
        raise refused_column(path, name, f"the folder's name holds no {kind}") from error
