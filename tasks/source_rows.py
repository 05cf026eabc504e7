"""A snapshot's rows as stages read them: every file checked against the snapshot, the rows left out by its contract."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from data_contracts.digest_cache import DigestCache
from data_contracts.digests import sha256_of
from data_contracts.documents import ContractReceipt, Link, Snapshot, SourceFile
from data_contracts.publication import Workspace
from data_contracts.quarantine import left_out_rows
from data_contracts.sources import SourceSpec, read_rows
from tasks.code_version import code_version
from training.data.splits import NO_ROWS, SourceRows


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
    left_out = left_out_rows(workspace, workspace.load(receipt, ContractReceipt))
    reading = sha256_of([taken.format, taken.options, taken.columns, code_version(read_rows.__module__)])

    def rows_of(file: SourceFile) -> SourceRows:
        return SourceRows(
            path=file.path,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            num_rows=file.num_rows,
            left_out=left_out.get(file.path, NO_ROWS),
            read=partial(read_rows, source, file, base=base, columns=taken.columns, digests=digests),
            reading=reading,
        )

    return [rows_of(file) for file in taken.files]
