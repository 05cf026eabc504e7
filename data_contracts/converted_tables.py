"""Tables of text (CSV, JSON lines) as Parquet, converted once for each content of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from data_contracts.digests import sha256_file, sha256_of
from data_contracts.documents import SourceFile
from data_contracts.file_cache import FileCache
from data_contracts.row_batches import Conformer
from data_contracts.source_spec import SourceSpec
from data_contracts.table_formats import file_batches, inferred_columns, reading_options

CONVERTER_VERSION = 1
"""Goes up whenever other rows or types come out of the same bytes."""


class ConvertedTables:
    """Columns, rows and Parquet files of the text files of one source; nothing is asked of the same bytes twice.

    Args:
        spec: how rows come out of the source's files.
        cache: where Parquet files and what is known of them are kept.
    """

    def __init__(self, spec: SourceSpec, cache: FileCache) -> None:
        self._spec, self._cache = spec, cache

    def known_columns(self, sha256: str, declared: Mapping[str, str]) -> dict[str, str] | None:
        note = self._cache.note(self._columns_key(sha256, declared))
        return None if note is None else {str(name): str(kind) for name, kind in note["columns"].items()}

    def infer_columns(self, sha256: str, path: Path, where: str, declared: Mapping[str, str]) -> dict[str, str]:
        """Types of a file's columns: as declared, or read from the whole file."""
        columns = inferred_columns(self._spec, path, where, declared)
        self._cache.write_note(self._columns_key(sha256, declared), {"columns": columns})
        return columns

    def known_num_rows(self, sha256: str, columns: Mapping[str, str]) -> int | None:
        note = self._cache.note(self._table_key(sha256, columns))
        return None if note is None else int(note["num_rows"])

    def find(self, file: SourceFile, columns: Mapping[str, str]) -> Path | None:
        """The Parquet file made of these bytes, if it is still here and whole."""
        return self._cache.find(self._table_key(file.sha256, columns))

    def convert(self, sha256: str, path: Path, where: str, columns: Mapping[str, str]) -> tuple[Path, int]:
        """Write the rows of a file as Parquet, within memory bounded by a block of text.

        Returns:
            The Parquet file, and its number of rows.
        """
        import pyarrow.parquet as pq

        key, num_rows = self._table_key(sha256, columns), 0
        conformer = Conformer(columns, {})
        with self._cache.making(key) as staging:
            with pq.ParquetWriter(staging, conformer.schema, compression="lz4") as writer:
                for batch in file_batches(self._spec, path, where, columns):
                    writer.write_batch(conformer.conform(batch))
                    num_rows += batch.num_rows
            return self._cache.keep(key, staging, sha256_file(staging), {"num_rows": num_rows}), num_rows

    def _columns_key(self, sha256: str, declared: Mapping[str, str]) -> str:
        return sha256_of({"columns of": sha256, "types": dict(declared), **self._options()})

    def _table_key(self, sha256: str, columns: Mapping[str, str]) -> str:
        return sha256_of({"table of": sha256, "types": dict(columns), **self._options()})

    def _options(self) -> dict[str, object]:
        from pyarrow import __version__ as pyarrow_version

        options = reading_options(self._spec)
        return {"version": CONVERTER_VERSION, "pyarrow": pyarrow_version, "format": self._spec.format, **options}
