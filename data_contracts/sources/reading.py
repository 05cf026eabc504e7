"""Sources: rows of a snapshot's files, proved to be the snapshot's.

Local files are read directly, everything else through fsspec. A file that changes while it is read is an error,
never a mixture of two versions, and a file read later must still be the one in the snapshot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headway.data_contracts.sources.locations import file_place
from headway.data_contracts.sources.locations import resolve_base_uri as resolve_base_uri
from headway.data_contracts.sources.partitions import folder_values
from headway.data_contracts.sources.snapshots import take_snapshot as take_snapshot
from headway.data_contracts.sources.verified_bytes import proved, read_proved
from headway.data_contracts.store.documents import Snapshot, SourceFile
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.tables.converted_tables import ConvertedTables
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.parquet_files import pieces, read_batches
from headway.data_contracts.tables.row_batches import Conformer
from headway.data_contracts.tables.rows_files import RowsFiles
from headway.data_contracts.tables.source_spec import SourceSpec as SourceSpec
from headway.data_contracts.tables.text_rows import text_batch, text_row, write_rows

if TYPE_CHECKING:
    import pyarrow as pa


def read_file(spec: SourceSpec, file: SourceFile, *, base: Path) -> bytes:
    """The bytes of a file of a snapshot, proved to be the same ones.

    Raises:
        DataError: gone, unreadable, or changed since the snapshot was taken.
    """
    return read_proved(file_place(resolve_base_uri(spec, base=base), file.path), file)


def read_rows(
    spec: SourceSpec,
    file: SourceFile,
    *,
    base: Path,
    columns: Mapping[str, str],
    digests: DigestCache | None = None,
) -> Iterator[pa.RecordBatch]:
    """All rows of a snapshot's file, in the file's order, in batches of some megabytes.

    The last step proves the bytes: rows of a file that changed meanwhile come before the error that says so.

    Args:
        columns: the snapshot's columns; batches have them in the order of their names.
        digests: remembered digests, so that a local file known to be unchanged is not hashed.

    Raises:
        DataError: gone, unreadable, damaged, or changed since the snapshot was taken.
    """
    if not spec.is_table:
        yield text_batch([text_row(file, read_file(spec, file, base=base))])
        return
    folders = folder_values(spec, file.path)
    held = {name: kind for name, kind in columns.items() if name not in folders}
    where = file_place(resolve_base_uri(spec, base=base), file.path)
    conformer = Conformer(columns, folders, where)
    copies = None if digests is None else FileCache.beside(digests)
    with proved(where, file, digests=digests, copies=copies) as path, contextlib.ExitStack() as scratch:
        if spec.is_text_table:
            kept = copies or scratch.enter_context(_scratch_cache())
            path = _converted(spec, file, path, where, held, kept)
        for batch in read_batches(path, where):
            for piece in pieces(batch):
                yield conformer.conform(piece)


def unparsable_rows(
    spec: SourceSpec, file: SourceFile, *, columns: Mapping[str, str], digests: DigestCache
) -> tuple[int, ...]:
    """Numbers of a file's rows that cannot be read as their columns' types, once its rows were read."""
    if not file.num_unparsable:
        return ()
    folders = folder_values(spec, file.path)
    held = {name: kind for name, kind in columns.items() if name not in folders}
    rows = ConvertedTables(spec, FileCache.beside(digests), keeps_bad=True).known_rows(file.sha256, held)
    assert rows is not None, file.path
    return rows.unparsable


@contextlib.contextmanager
def _scratch_cache() -> Iterator[FileCache]:
    with scratch_folder("headway-") as folder:
        yield FileCache.beside(DigestCache(folder / "digests"))


def _converted(
    spec: SourceSpec, file: SourceFile, path: Path, where: str, columns: Mapping[str, str], copies: FileCache
) -> Path:
    """The Parquet file made of a text table's bytes, made only if it is not there yet."""
    tables = ConvertedTables(spec, copies, keeps_bad=file.num_unparsable > 0)
    return tables.find(file, columns) or tables.convert(file.sha256, path, where, columns)[0]


@contextlib.contextmanager
def rows_files(
    spec: SourceSpec, snapshot: Snapshot, scratch: Path, *, base: Path, digests: DigestCache | None = None
) -> Iterator[RowsFiles]:
    """The rows of a snapshot as local Parquet files, proved to be the snapshot's from the body's start to its end.

    Local Parquet files stay where they are. Text files are written to `scratch` as one table; copies of remote tables
    and conversions are kept beside `digests`, and made once for each content.

    Args:
        scratch: an existing local folder; the caller removes it.
        digests: remembered digests, so that a local file known to be unchanged is not hashed; without it, everything is
            made in `scratch`.

    Raises:
        DataError: a file is gone, unreadable, damaged, or changed since the snapshot was taken or during the body.
    """
    if not spec.is_table:
        table = scratch.resolve() / "rows.parquet"
        write_rows(((file, read_file(spec, file, base=base)) for file in snapshot.files), table)
        yield RowsFiles(columns=snapshot.columns, files=snapshot.files, local=(table,), is_packed=True)
        return
    remembered = DigestCache(scratch / "digests") if digests is None else digests
    copies = FileCache.beside(remembered)
    folders = [folder_values(spec, file.path) for file in snapshot.files]
    with contextlib.ExitStack() as proofs:
        reader = _ParquetFiles(spec, resolve_base_uri(spec, base=base), snapshot, remembered, copies)
        yield RowsFiles(
            columns=snapshot.columns,
            files=snapshot.files,
            local=tuple(reader.local(file, proofs).resolve() for file in snapshot.files),
            unparsable=tuple(
                unparsable_rows(spec, file, columns=snapshot.columns, digests=remembered) for file in snapshot.files
            ),
            partitions={name: tuple(each[name] for each in folders) for name in folders[0]},
            may_lack=spec.format == "parquet" and bool(spec.optional_columns),
        )
    # Only after the body: an earlier trim could remove a copy that the body still reads.
    copies.trim()


class _ParquetFiles:
    """Parquet files on this machine for the files of a snapshot."""

    def __init__(
        self, spec: SourceSpec, root: str, snapshot: Snapshot, digests: DigestCache, copies: FileCache
    ) -> None:
        self._spec, self._root, self._digests, self._copies = spec, root, digests, copies
        folders = folder_values(spec, snapshot.files[0].path)
        self._columns = {name: kind for name, kind in snapshot.columns.items() if name not in folders}

    def local(self, file: SourceFile, proofs: contextlib.ExitStack) -> Path:
        """The file itself where it is local Parquet; a copy or a conversion else."""
        where = file_place(self._root, file.path)
        if self._spec.format == "parquet":
            return proofs.enter_context(proved(where, file, digests=self._digests, copies=self._copies))
        # The conversion is found by the digest alone, so the text file's proof may end before its rows are read.
        with proved(where, file, digests=self._digests, copies=self._copies) as path:
            return _converted(self._spec, file, path, where, self._columns, self._copies)
