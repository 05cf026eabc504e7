"""Quarantine: rows that break a rule with `action: quarantine` are listed by name and rules, and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import UNPARSABLE
from headway.data_contracts.scans.broken_rows import find_broken
from headway.data_contracts.scans.exact_checks import one_value
from headway.data_contracts.scans.file_states import FileStates
from headway.data_contracts.scans.rows_database import ALL_ROWS, BROKEN, FILES, QUARANTINED, RowsDatabase, literal
from headway.data_contracts.store.digests import sha256_bytes, sha256_file
from headway.data_contracts.store.documents import ContractReceipt, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.rows_files import FILE_COLUMN, PATH_COLUMN, ROW_COLUMN

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_LISTED_ROWS = 1000
"""How many rows are listed once the limit is broken: nothing is trained then, and a list must stay small."""
ROW_GROUP_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    num_rows: int
    """Rows before quarantine."""
    num_quarantined: int
    num_allowed: int
    num_by_check: dict[str, int]
    """Rows quarantined by each check, by `rule_id`."""
    num_unparsable: int = 0
    """Rows quarantined because they cannot be read as their columns' types."""
    raised: dict[str, str] = field(default_factory=dict)
    """Checks that could not be evaluated, by `rule_id`, and the kind of error."""

    @property
    def num_remaining(self) -> int:
        return self.num_rows - self.num_quarantined

    @property
    def is_within_limit(self) -> bool:
        return self.num_quarantined <= self.num_allowed


def _quarantine_unparsable(connection: duckdb.DuckDBPyConnection, database: RowsDatabase) -> int:
    import pyarrow as pa

    named = [(place, row) for place, rows in enumerate(database.rows.unparsable) for row in rows]
    if named:
        files, rows = zip(*named, strict=True)
        # By place and number: a table of them is joined far faster than a list in SQL.
        connection.register("unparsable_rows", pa.table({"file": pa.array(files), "row": pa.array(rows)}))
        connection.execute(f"INSERT INTO {BROKEN} SELECT file, row, {literal(UNPARSABLE)} FROM unparsable_rows")
        connection.unregister("unparsable_rows")
    return len(named)


class QuarantinedRow(NamedTuple):
    """A row left out of training, by its file, its number there, and the rules it broke."""

    path: str
    row: int
    rule_ids: tuple[str, ...]


def quarantine_rows(
    connection: duckdb.DuckDBPyConnection,
    database: RowsDatabase,
    checks: Sequence[Check],
    limit_ratio: float,
    states: FileStates | None = None,
) -> Quarantine:
    """Fill the table of broken rows, which takes them out of the views of rows that remain.

    A rule that raises quarantines nothing and is reported: its check fails. Rows that cannot be read as their columns'
    types are quarantined in any case: there are some only where the contract wants them quarantined.
    """
    num_by_check, raised = find_broken(connection, database, checks, states)
    num_unparsable = _quarantine_unparsable(connection, database)
    num_rows = int(one_value(connection, f"SELECT count(*) FROM {ALL_ROWS}"))
    num_quarantined = int(one_value(connection, f"SELECT count(*) FROM {QUARANTINED}"))
    # Without broken rows the views can be plain ones, which later scans read faster.
    if not num_quarantined:
        database.keep_all(connection)
    return Quarantine(
        num_rows=num_rows,
        num_quarantined=num_quarantined,
        num_allowed=int(num_rows * limit_ratio),
        num_by_check=num_by_check,
        num_unparsable=num_unparsable,
        raised=raised,
    )


def write_quarantine(connection: duckdb.DuckDBPyConnection, quarantine: Quarantine, target: Path) -> StoredFile | None:
    """Write the rows quarantined as a Parquet file, by file and row, and say where in the workspace it belongs.

    Over the limit, only the first `MAX_LISTED_ROWS` are written. Equal rows give equal bytes.

    Returns:
        None when no row is quarantined; nothing is written then.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not quarantine.num_quarantined:
        return None
    name = f"{FILE_COLUMN}, {ROW_COLUMN}"
    # Sorted and distinct: the file's bytes must not depend on the order in which rules were evaluated.
    rules = f"SELECT {name}, list_sort(list(DISTINCT rule_id)) AS rule_ids FROM {BROKEN} GROUP BY {name}"
    # Over the limit nothing is trained, and the list only shows where to begin.
    limit = "" if quarantine.is_within_limit else f"LIMIT {MAX_LISTED_ROWS}"
    sql = (
        f"SELECT {PATH_COLUMN} AS path, {ROW_COLUMN} AS row, rule_ids "
        f"FROM ({rules}) JOIN {FILES} USING ({FILE_COLUMN}) ORDER BY {name} {limit}"
    )
    # A cursor of its own: the connection may still hold the end of another result.
    reader = connection.cursor().sql(sql).to_arrow_reader(ROW_GROUP_ROWS)
    schema = pa.schema({"path": pa.string(), "row": pa.int64(), "rule_ids": pa.list_(pa.string())})
    # `store_schema` would put Arrow's own, which differs by version, into the file.
    with pq.ParquetWriter(target, schema, compression="zstd", store_schema=False) as writer:
        for table in _evenly(reader, ROW_GROUP_ROWS):
            writer.write_table(table.cast(schema))
    sha256 = sha256_file(target)
    return StoredFile(path=f"quarantine/{sha256}.parquet", size_bytes=target.stat().st_size, sha256=sha256)


def _evenly(batches: Iterator[pa.RecordBatch], num_rows: int) -> Iterator[pa.Table]:
    """The same rows, `num_rows` at a time: a Parquet file's bytes depend on how rows were handed over."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    num_held = 0
    for batch in batches:
        while num_held + batch.num_rows >= num_rows:
            missing = num_rows - num_held
            yield pa.Table.from_batches([*held, batch.slice(0, missing)]).combine_chunks()
            held, num_held, batch = [], 0, batch.slice(missing)
        held.append(batch)
        num_held += batch.num_rows
    if num_held:
        yield pa.Table.from_batches(held).combine_chunks()


def excluded_rows(workspace: Workspace, receipt: ContractReceipt) -> dict[str, NDArray[np.int64]]:
    """The rows that a receipt leaves out: sorted row numbers, shape (n,), by path; no path without rows.

    Raises:
        IntegrityError: the quarantine's file is gone, altered, or lists other than all rows.
    """
    import pyarrow.parquet as pq

    if receipt.quarantine is None:
        return {}
    where = receipt.quarantine.path
    data = workspace.read(where)
    # Read once: what is hashed is what is parsed.
    if sha256_bytes(data) != receipt.quarantine.sha256:
        raise IntegrityError("its bytes differ from the digest in the receipt.", where=where)
    table = pq.read_table(BytesIO(data), columns=["path", "row"], read_dictionary=["path"]).combine_chunks()
    # A list that was cut belongs to data that were refused, and must not be trained on.
    if table.num_rows != receipt.num_quarantined:
        raise IntegrityError(
            f"lists {table.num_rows:,} of {receipt.num_quarantined:,} rows: the receipt's data were refused.",
            where=where,
        )
    return _by_path(table)


def _by_path(table: pa.Table) -> dict[str, NDArray[np.int64]]:
    import numpy as np

    paths = table["path"].combine_chunks().dictionary_encode()
    places, rows = paths.indices.to_numpy(), table["row"].to_numpy()
    # Sorted by row within each file: the shards' writer searches in them.
    order = np.lexsort((rows, places))
    found, firsts = np.unique(places[order], return_index=True)
    parts = np.split(rows[order], firsts[1:])
    return {paths.dictionary[int(place)].as_py(): part for place, part in zip(found, parts, strict=True)}
