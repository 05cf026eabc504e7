"""Files as others write them, damage them, or make them to do harm; each by a few lines, none kept."""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

NUM_ROWS = 300


def table() -> pa.Table:
    numbers = range(NUM_ROWS)
    return pa.table(
        {
            "n": np.arange(NUM_ROWS),
            "text": [f"x{number % 17}" for number in numbers],
            "share": np.linspace(0, 1, NUM_ROWS),
            "pair": [[number, number + 1] for number in numbers],
            "rare": [None if number % 3 else number for number in numbers],
            "day": pa.array(numbers, pa.int32()).cast(pa.date32()),
        }
    )


def parquet(rows: pa.Table | None = None, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table() if rows is None else rows, stream, **options)
    return stream.getvalue()


def csv(num_rows: int = 40) -> bytes:
    return b"n,text,day\n" + b"".join(b'%d,"a,%d",2026-01-02\n' % (row, row) for row in range(num_rows))


def json_lines(num_rows: int = 40) -> bytes:
    rows = ({"n": row, "text": f"{row}", "pair": [row, 1.5], "none": None, "ok": True} for row in range(num_rows))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class _Keys(pe.KmsClient):  # type: ignore[misc]
    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: str, _: str) -> bytes:
        return base64.b64decode(key)


def encrypted(*, plaintext_footer: bool) -> bytes:
    configuration = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["share"]}, plaintext_footer=plaintext_footer
    )
    factory, stream = pe.CryptoFactory(_Keys), io.BytesIO()
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    with pq.ParquetWriter(stream, table().schema, encryption_properties=properties) as writer:
        writer.write_table(table())
    return stream.getvalue()


def damaged_page(rows: pa.Table, column: str, offset: int = 0, damage: bytes = b"\xff" * 8) -> bytes:
    """A file whose first page of a column is not what it was."""
    whole = bytearray(parquet(rows, use_dictionary=False, compression="none"))
    with pq.ParquetFile(io.BytesIO(bytes(whole))) as file:
        start = file.metadata.row_group(0).column(rows.schema.names.index(column)).data_page_offset + offset
    whole[start : start + len(damage)] = damage
    return bytes(whole)


def _not_utf8() -> bytes:
    offsets, values = pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    return parquet(pa.table({"text": pa.StringArray.from_buffers(2, offsets, values)}))


def _of_16_bits() -> bytes:
    rows = pa.table({"half": pa.array(np.arange(200), pa.float16())})
    return parquet(rows, use_dictionary=False, column_encoding={"half": "BYTE_STREAM_SPLIT"})


def _bomb(line: bytes, header: bytes = b"") -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(64):
            file.write(line * ((1 << 20) // len(line)))
    return stream.getvalue()


def _wide(num_columns: int, value: str) -> bytes:
    header = ",".join(f"c{number}" for number in range(num_columns))
    row = ",".join(f"{value}{number % 10}" for number in range(num_columns))
    return f"{header}\n{row}\n{row}\n".encode()


def _new_key_each_line(num_lines: int) -> bytes:
    return b"".join(b'{"key%d": 1}\n' % number for number in range(num_lines))


def _deep(opening: str, closing: str, depth: int) -> bytes:
    return f'{{"a": {opening * depth}1{closing * depth}}}\n'.encode()


REFUSED: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "footer-only.parquet": (lambda: parquet()[-2200:], r"cannot be read|not a readable Parquet"),
    "cut.parquet": (lambda: parquet()[:1500], "not a readable Parquet file"),
    "gap.parquet": (lambda: parquet()[:100] + parquet()[400:], r"cannot be read|not a readable Parquet"),
    "encrypted.parquet": (lambda: encrypted(plaintext_footer=False), "not a readable Parquet file"),
    "plain-footer.parquet": (lambda: encrypted(plaintext_footer=True), "column `share` is encrypted"),
    "not-utf8.parquet": (_not_utf8, "column `text` holds texts that are not UTF-8"),
    "half.parquet": (_of_16_bits, "column `half` is written in an encoding"),
    "page-header.parquet": (lambda: damaged_page(table(), "share"), "column `share` cannot be read"),
    "list-levels.parquet": (lambda: damaged_page(table(), "pair", 24, b"\xff" * 60), "column `pair` cannot be read"),
    "deep.jsonl": (lambda: _deep("[", "]", 100_000), "line 1: the line nests 100,001 deep"),
    "deep-objects.jsonl": (lambda: _deep('{"a":', "}", 100_000), "line 1: the line nests 100,001 deep"),
    "recursive.jsonl": (lambda: _deep("[", "]", 500), "line 1: the line nests 501 deep"),
    "keys.jsonl": (lambda: _new_key_each_line(60_000), "more than 10,000 different keys"),
    "late-type.jsonl": (lambda: b'{"a": 1}\n' * 100_000 + b'{"a": "x"}\n', "line 100,001: column `a`: holds int64"),
    "half-character.jsonl": (lambda: b'{"a": "\\ud800"}\n', "such as half a Unicode character"),
    "bomb.csv.gz": (lambda: _bomb(b"1,2\n", b"a,b\n"), "decompresses to more than 100 times its size"),
    "bomb.jsonl.gz": (lambda: _bomb(b'{"a":1}\n'), "decompresses to more than 100 times its size"),
    "line.csv": (lambda: b"a,b\n" + b"x" * (100 << 20) + b",1\n", "a row is longer than 16,777,216 bytes"),
    "line.jsonl": (lambda: b'{"a": "' + b"x" * (100 << 20) + b'"}\n', "a line is longer than 67,108,864 bytes"),
    "columns.csv": (lambda: _wide(4_100, ""), "4,100 columns, and a contract is drafted for 4,096 at most"),
}
"""What is refused: how it is made, and what is said of it."""
READ: Mapping[str, Callable[[], bytes]] = {
    "wide.csv": lambda: _wide(1000, ""),
    "delta.parquet": lambda: parquet(
        use_dictionary=False, column_encoding={"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}
    ),
    "pages-2.parquet": lambda: parquet(data_page_version="2.0", compression="zstd"),
    "expanding.csv.gz": lambda: gzip.compress(b"n,m\n" + b"1,2\n" * 500_000),
}
