"""One schema for all files of a source: agreed by name and type before any row is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.source_errors import lacks_declared, other_columns, other_type, refused_column

Columns = Mapping[str, str]
"""Column name to type name (`headway.data_contracts.types.column_types`)."""
RESERVED_PREFIX = "_headway_"
RESERVED_NAMES = ("file_row_number",)
"""DuckDB's own name for a row's number, under which it would hide the column."""

RENAME = "Rename it where the file is written; of delimited text the first line has to hold the names."


def check_names(where: str, names: Iterable[str]) -> None:
    """Refuse names that a row cannot have.

    Raises:
        DataError: an empty name, one of Headway's own, two that differ in case alone, or the same one twice.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name or not name.isprintable():
            raise refused_column(where, ascii(name)[1:-1], "a column needs a name that can be shown", RENAME)
        if name.startswith(RESERVED_PREFIX) or name.lower() in RESERVED_NAMES:
            raise refused_column(where, name, "the name is kept for Headway's own use", RENAME)
        # DuckDB ignores case in names, and reads the second of two such columns under a name of its own making.
        if name.lower() in seen:
            reason = f"there is `{seen[name.lower()]}` already, and case does not tell apart"
            raise refused_column(where, name, reason, RENAME)
        seen[name.lower()] = name


def agreed_columns(files: Iterable[tuple[str, Columns]], optional: Collection[str]) -> dict[str, str]:
    """The columns of all files, in the first file's order; a column that only later files have comes last.

    Args:
        files: each file's path and columns, in the snapshot's order.
        optional: columns that a file may lack.

    Raises:
        DataError: two files differ: names both, the column, and both types.
    """
    agreed: dict[str, str] = {}
    origin: dict[str, str] = {}
    first = ""
    for path, columns in files:
        first = first or path
        for name, kind in columns.items():
            if agreed.get(name, kind) != kind:
                raise other_type(path, name, kind, agreed[name], origin[name])
        _check_complete(path, first, columns, agreed, optional, is_first=path == first)
        for name, kind in columns.items():
            if name not in agreed:
                agreed[name], origin[name] = kind, path
    return agreed


def _check_complete(
    path: str, first: str, columns: Columns, agreed: Columns, optional: Collection[str], *, is_first: bool
) -> None:
    missing = [name for name in agreed if name not in columns and name not in optional]
    extra = [] if is_first else [name for name in columns if name not in agreed and name not in optional]
    if missing or extra:
        raise other_columns(path, first, missing, extra)


def check_declared(where: str, names: Collection[str], declared: Columns, optional: Collection[str]) -> None:
    """Refuse a source's first file where it lacks a column that the pipeline file gives a type.

    Raises:
        DataError: names it, and the columns of the file that have none given.
    """
    missing = [name for name in declared if name not in names and name not in optional]
    if missing:
        raise lacks_declared(where, missing, [name for name in names if name not in declared])


def check_complete(where: str, names: Collection[str], columns: Columns, optional: Collection[str], first: str) -> None:
    """Refuse a file whose columns are not those of the source.

    Raises:
        DataError: it lacks a column that is not optional, or has another besides.
    """
    missing = [name for name in columns if name not in names and name not in optional]
    extra = [name for name in names if name not in columns]
    if missing or extra:
        raise other_columns(where, first, missing, extra)


def with_partitions(where: str, columns: Columns, partitions: Columns) -> dict[str, str]:
    """A file's columns and those of its folders' names.

    Raises:
        DataError: a folder's name holds a column that the file holds as well.
    """
    for name in partitions:
        if name in columns:
            raise DataError(
                f"column `{name}` is in the file and in a folder's name.",
                where=where,
                advice="Drop it from the files, or set `source.partitions: false`.",
            )
    return {**columns, **partitions}
