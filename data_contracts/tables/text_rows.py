"""Text files as rows: what a contract can say about each file, written as Parquet a row group at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.documents import SourceFile
from headway.data_contracts.types.column_types import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

TEXT_COLUMNS = {
    "path": "string",
    "sha256": "string",
    "size_bytes": "int64",
    "is_utf8": "bool",
    "has_nul": "bool",
    "num_lines": "int64",
    "num_chars": "int64",
    "max_line_chars": "int64",
    "text": "string",
}
"""Column to Arrow type. `num_chars`, `max_line_chars` and `text` are null where the bytes are not UTF-8."""
ROW_GROUP_BYTES = 16 << 20
ROW_GROUP_ROWS = 8192

Row = dict[str, Any]


def text_row(file: SourceFile, data: bytes) -> Row:
    """One file as a row. Lines end at line feeds alone; a byte order mark counts as a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    return {
        "path": file.path,
        "sha256": file.sha256,
        "size_bytes": file.size_bytes,
        "is_utf8": text is not None,
        "has_nul": b"\0" in data,
        "num_lines": data.count(b"\n") + (data != b"" and not data.endswith(b"\n")),
        "num_chars": None if text is None else len(text),
        "max_line_chars": None if text is None else max(map(len, text.split("\n"))),
        "text": text,
    }


def text_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows in the columns of text files."""
    import pyarrow as pa

    schema = pa.schema([(name, arrow_type(kind)) for name, kind in TEXT_COLUMNS.items()])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def write_rows(files: Iterable[tuple[SourceFile, bytes]], target: Path) -> None:
    """Write a Parquet file of one row a file, in the order given; memory is bounded by a row group."""
    import pyarrow.parquet as pq

    schema = text_batch([]).schema
    # Texts of files hardly repeat: a dictionary or least and greatest values would only store them again.
    with pq.ParquetWriter(target, schema, compression="lz4", use_dictionary=False, write_statistics=False) as writer:

        def flush(rows: list[Row]) -> None:
            if rows:
                writer.write_batch(text_batch(rows))

        rows: list[Row] = []
        held_bytes = 0
        for file, data in files:
            rows.append(text_row(file, data))
            held_bytes += len(data)
            if held_bytes >= ROW_GROUP_BYTES or len(rows) >= ROW_GROUP_ROWS:
                flush(rows)
                rows, held_bytes = [], 0
        flush(rows)
