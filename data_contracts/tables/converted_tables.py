"""Tables of text (CSV, JSON lines) as Parquet, converted once for each content of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headway.data_contracts.store.digests import sha256_file, sha256_of
from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.formats import reading_options
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.tables.text_table_reader import convert, inferred_columns

CONVERTER_VERSION = 3
"""Goes up whenever other rows or types come out of the same bytes."""


class Rows(NamedTuple):
    """What is known of a file's rows."""

    num_rows: int
    unparsable: tuple[int, ...]
    """Those that cannot be read as their columns' types: sorted, each once, from 0."""


class ConvertedTables:
    """Columns, rows and Parquet files of the text files of one source; nothing is asked of the same bytes twice.

    Args:
        spec: how rows come out of the source's files.
        cache: where Parquet files and what is known of them are kept.
        keeps_bad: whether rows that cannot be read are kept, null where they cannot; else a file is refused for them.
        valueless: the type of a column without a value; empty: its file is refused.
    """

    def __init__(self, spec: SourceSpec, cache: FileCache, *, keeps_bad: bool = False, valueless: str = "") -> None:
        self._spec, self._cache, self._keeps_bad, self._valueless = spec, cache, keeps_bad, valueless

    def known_columns(self, sha256: str, declared: Mapping[str, str]) -> dict[str, str] | None:
        note = self._cache.note(self._columns_key(sha256, declared))
        return None if note is None else {str(name): str(kind) for name, kind in note["columns"].items()}

    def infer_columns(self, sha256: str, path: Path, where: str, declared: Mapping[str, str]) -> dict[str, str]:
        """Types of a file's columns: as declared, or read from the whole file."""
        columns = inferred_columns(
            self._spec, path, where, declared, keeps_bad=self._keeps_bad, valueless=self._valueless
        )
        self._cache.write_note(self._columns_key(sha256, declared), {"columns": columns})
        return columns

    def known_rows(self, sha256: str, columns: Mapping[str, str]) -> Rows | None:
        note = self._cache.note(self._table_key(sha256, columns))
        return None if note is None else _rows(note)

    def find(self, file: SourceFile, columns: Mapping[str, str]) -> Path | None:
        """The Parquet file made of these bytes, if it is still here and whole."""
        return self._cache.find(self._table_key(file.sha256, columns))

    def convert(self, sha256: str, path: Path, where: str, columns: Mapping[str, str]) -> tuple[Path, Rows]:
        """Write the rows of a file as Parquet, within memory bounded by a block of text.

        Returns:
            The Parquet file, and its rows.
        """
        key = self._table_key(sha256, columns)
        with self._cache.making(key) as staging:
            num_rows, bad = convert(self._spec, path, where, columns, staging, keeps_bad=self._keeps_bad)
            note = {"num_rows": num_rows, **({"unparsable": bad} if bad else {})}
            return self._cache.keep(key, staging, sha256_file(staging), note), _rows(note)

    def _columns_key(self, sha256: str, declared: Mapping[str, str]) -> str:
        return sha256_of({"columns of": sha256, "types": dict(declared), **self._options()})

    def _table_key(self, sha256: str, columns: Mapping[str, str]) -> str:
        return sha256_of({"table of": sha256, "types": dict(columns), **self._options()})

    def _options(self) -> dict[str, object]:
        from pyarrow import __version__ as pyarrow_version

        options = reading_options(self._spec)
        kept = {"keeps_bad": True} if self._keeps_bad else {}
        valueless = {"valueless": self._valueless} if self._valueless else {}
        return {
            "version": CONVERTER_VERSION,
            # Another Arrow may read other rows or types out of the same text.
            "pyarrow": pyarrow_version,
            "format": self._spec.format,
            **options,
            **kept,
            **valueless,
        }


def _rows(note: Mapping[str, Any]) -> Rows:
    return Rows(int(note["num_rows"]), tuple(sorted({int(row) for row, _, _ in note.get("unparsable", ())})))
