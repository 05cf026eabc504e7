"""Taking a snapshot: which files there are, the digest and the rows of each, and the columns they all have."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from headway.data_contracts.sources.locations import resolve_base_uri
from headway.data_contracts.sources.partitions import folder_values, partition_columns
from headway.data_contracts.sources.stores import ListedFile, Store, open_store
from headway.data_contracts.sources.verified_bytes import proved
from headway.data_contracts.store.documents import Snapshot, SourceFile
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.tables.converted_tables import ConvertedTables
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.formats import named_columns, reading_options
from headway.data_contracts.tables.schema import agreed_columns, check_complete, check_declared, with_partitions
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS
from headway.data_contracts.types.report_text import count
from headway.data_contracts.types.text_types import VALUELESS, common_type

QUARANTINED = {"unparsable_rows": "quarantine"}
Found = tuple[dict[str, str], tuple[SourceFile, ...]]
"""The columns of a source, and its files."""


def take_snapshot(
    spec: SourceSpec,
    *,
    base: Path,
    cache: DigestCache,
    texts: Collection[str] = (),
    quarantined: Mapping[str, str] | None = None,
    workspace: Path | None = None,
    is_draft: bool = False,
) -> Snapshot:
    """Digest every file of the source; a file that is remembered by its stat identity or strong ETag is not read.

    Args:
        base: the folder relative paths start from.
        cache: remembered digests; the caller saves it. Copies of remote tables and converted ones are kept beside it.
        texts: columns that are texts wherever a file does not say what they are, though all values be digits; others
            have the type that their values have.
        quarantined: types of columns where a row of a text table that cannot be read as them is counted and kept apart;
            None: the file is refused for such a row.
        workspace: where Headway keeps what it makes; nothing in it is data.
        is_draft: nobody could declare a type yet: columns of text tables have the type of all files' values together,
            and those without a value are texts.

    Raises:
        DataError: no file matches, one lies in the workspace, cannot be read, is too large, changes while it is read,
            or holds other columns.
        ConfigError: the URI names no known file system or package; a type is declared for no column.
    """
    root, copies = resolve_base_uri(spec, base=base), FileCache.beside(cache)
    store = open_store(spec, root, cache, copies)
    listed = store.list_files()
    if not listed:
        raise DataError(
            f"the source is empty: no file matches include {list(spec.include)} and exclude {list(spec.exclude)}.",
            where=root,
            advice="Check `source.uri`, `source.include` and `source.exclude`.",
        )
    _require_no_products(listed, root, workspace)
    columns, files = (
        _tables(spec, store, listed, cache, copies, texts, quarantined, is_draft=is_draft)
        if spec.is_table
        else _texts(spec, store, listed)
    )
    # Digests, row counts and columns were read one after another: they belong together if nothing moved meanwhile.
    store.check_unchanged(listed)
    return Snapshot(
        format=spec.format,
        options=reading_options(spec) | ({} if quarantined is None or not spec.is_text_table else QUARANTINED),
        columns=columns,
        num_rows=sum(file.num_rows for file in files),
        files=files,
    )


def _require_no_products(listed: Sequence[ListedFile], root: str, workspace: Path | None) -> None:
    """Raises DataError where the source takes in what earlier retrains made: each retrain would train on more of it."""
    if workspace is None or "://" in root or not workspace.is_relative_to(root) or workspace == Path(root):
        return
    inside = workspace.relative_to(root).as_posix()
    made = [file.path for file in listed if file.path.startswith(f"{inside}/")]
    if made:
        raise DataError(
            f"the source takes in {count(len(made), 'file')} of the workspace, such as {made[0]}.",
            where=root,
            advice=f"Add `{glob.escape(inside)}/**` to `source.exclude`, or keep data and workspace apart.",
        )


def _texts(spec: SourceSpec, store: Store, listed: Sequence[ListedFile]) -> Found:
    for file in listed:
        if file.size_bytes > spec.max_file_bytes:
            raise DataError(
                f"the file has {file.size_bytes:,} bytes, more than source.max_file_bytes ({spec.max_file_bytes:,}).",
                where=store.place(file),
                advice="Exclude it, split it, or raise the bound.",
            )
    return TEXT_COLUMNS, tuple(_digested(store, file, 1) for file in listed)


def _tables(
    spec: SourceSpec,
    store: Store,
    listed: Sequence[ListedFile],
    cache: DigestCache,
    copies: FileCache,
    texts: Collection[str],
    quarantined: Mapping[str, str] | None,
    *,
    is_draft: bool,
) -> Found:
    partitions = partition_columns({file.path: folder_values(spec, file.path) for file in listed}, spec.column_types)
    declared = {name: kind for name, kind in spec.column_types.items() if name not in partitions}
    if spec.format == "parquet":
        if declared:
            raise ConfigError(
                f"`{next(iter(declared))}` is a column of no folder, and Parquet files hold the types of their own.",
                where="source.column_types",
                advice="Ask for a type in the contract.",
            )
        columns, files = _parquet(spec, store, listed)
    else:
        known = None
        if quarantined is not None:
            known = {name: kind for name, kind in quarantined.items() if name not in partitions}
        tables = _TextTables(spec, store, declared, cache, copies, texts, known, is_draft=is_draft)
        columns, files = tables.take(listed)
    return with_partitions(listed[0].path, columns, partitions), files


def _parquet(spec: SourceSpec, store: Store, listed: Sequence[ListedFile]) -> Found:
    """All footers first, so that no data page is read of files that do not fit together."""
    footers = [store.footer(file) for file in listed]
    named = ((file.path, footer.columns) for file, footer in zip(listed, footers, strict=True))
    columns = agreed_columns(named, spec.optional_columns)
    counted = zip(listed, footers, strict=True)
    return columns, tuple(_digested(store, file, footer.num_rows) for file, footer in counted)


class _TextTables:
    """Files whose columns and rows are known once their whole text was read: each content is read once."""

    def __init__(
        self,
        spec: SourceSpec,
        store: Store,
        declared: Mapping[str, str],
        cache: DigestCache,
        copies: FileCache,
        texts: Collection[str],
        quarantined: Mapping[str, str] | None,
        *,
        is_draft: bool,
    ) -> None:
        self._spec, self._store, self._declared = spec, store, declared
        # In JSON a text is quoted, and what is not quoted is none.
        by_contract = dict.fromkeys(sorted(texts), "string") if spec.format == "csv" else {}
        self._known = {**(by_contract if quarantined is None else quarantined), **declared}
        self._cache, self._copies = cache, copies
        self._is_draft = is_draft
        self._tables = ConvertedTables(
            spec, copies, keeps_bad=quarantined is not None, valueless=VALUELESS if is_draft else ""
        )

    def take(self, listed: Sequence[ListedFile]) -> Found:
        columns = self._columns(listed[0])
        if self._is_draft:
            # A first file of whole numbers says nothing of a later one with fractions, nor an empty column of it.
            of_files = [columns, *(self._columns(each) for each in listed[1:])]
            columns = {
                name: common_type([each[name] for each in of_files if name in each], self._spec.format)
                for name in columns
            }
        return columns, tuple(self._counted(file, columns, listed[0].path) for file in listed)

    def _columns(self, first: ListedFile) -> dict[str, str]:
        """The first file's columns, which hold for all, and those that are declared."""
        # No row count yet: it needs the columns, and these come from this very file.
        file = _digested(self._store, first, 0)
        found = self._tables.known_columns(file.sha256, self._known)
        if found is None:
            with self._proved(first, file) as path:
                found = self._tables.infer_columns(file.sha256, path, self._store.place(first), self._known)
        if self._spec.format == "csv":
            check_declared(self._store.place(first), found, self._declared, self._spec.optional_columns)
        columns = {**found, **self._declared}
        if not columns:
            raise DataError(
                "the file holds no row, so that the source's columns are not known.",
                where=self._store.place(first),
                advice="Exclude it, or declare `source.column_types`.",
            )
        return columns

    def _counted(self, listed: ListedFile, columns: Mapping[str, str], first: str) -> SourceFile:
        file = _digested(self._store, listed, 0)
        rows = self._tables.known_rows(file.sha256, columns)
        if rows is None:
            where = self._store.place(listed)
            with self._proved(listed, file) as path:
                names = named_columns(self._spec, path, where)
                if names is not None:
                    check_complete(where, names, columns, self._spec.optional_columns, first)
                rows = self._tables.convert(file.sha256, path, where, columns)[1]
        return file.model_copy(update={"num_rows": rows.num_rows, "num_unparsable": len(rows.unparsable)})

    def _proved(self, listed: ListedFile, file: SourceFile) -> AbstractContextManager[Path]:
        return proved(self._store.place(listed), file, digests=self._cache, copies=self._copies)


def _digested(store: Store, file: ListedFile, num_rows: int) -> SourceFile:
    return SourceFile(path=file.path, size_bytes=file.size_bytes, sha256=store.digest(file), num_rows=num_rows)
