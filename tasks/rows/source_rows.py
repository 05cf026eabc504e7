"""A snapshot's rows as stages read them: every file checked against the snapshot, the rows left out by its contract."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headway.data_contracts.engine.quarantine import excluded_rows
from headway.data_contracts.sources.reading import SourceSpec, read_rows
from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import ContractReceipt, Link, Snapshot, SourceFile
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.code_version import code_version
from headway.training.data.shards.splits import NO_ROWS, SourceRows


def source_rows(
    workspace: Workspace,
    base: Path,
    source: SourceSpec,
    snapshot: Link,
    receipt: Link,
    digests: DigestCache | None = None,
) -> list[SourceRows]:
    """Reading a file checks it against the snapshot."""
    taken = workspace.load(snapshot, Snapshot)
    excluded = excluded_rows(workspace, workspace.load(receipt, ContractReceipt))
    # Part of the keys of groups: the same bytes read otherwise are other rows.
    reading = sha256_of([taken.format, taken.options, taken.columns, code_version(read_rows.__module__)])

    def rows_of(file: SourceFile) -> SourceRows:
        return SourceRows(
            path=file.path,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            num_rows=file.num_rows,
            excluded=excluded.get(file.path, NO_ROWS),
            read=partial(read_rows, source, file, base=base, columns=taken.columns, digests=digests),
            reading=reading,
        )

    return [rows_of(file) for file in taken.files]
