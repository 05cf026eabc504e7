"""The process that parses text tables: a file that makes a parser crash, loop or grow ends this process and no other.

As a process: `python -m data_contracts.text_table_process`. It answers one JSON line on its standard input after the
other, each with lines that say it is alive and a last one that is the answer, until nobody has asked for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts import decompressed
from data_contracts.errors import DataError, HeadwayError
from data_contracts.row_batches import Conformer
from data_contracts.source_errors import UnparsableRow
from data_contracts.source_spec import SourceSpec
from data_contracts.table_formats import file_batches, inferred_columns
from data_contracts.unparsable_rows import Unparsable, refused, tolerant_batches, tolerant_columns

if TYPE_CHECKING:
    import pyarrow as pa

PR_SET_PDEATHSIG = 1
MEMORY_BYTES = 4 << 30
"""What parsing may hold, besides eight times the longest row that the source allows."""
IDLE_S = 5.0


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    decompressed.on_read.append(lambda: say({"alive": True}))
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.readline()):
        say(answer(json.loads(line)))


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    spec, path, where = SourceSpec.model_validate(asked["spec"]), Path(asked["path"]), str(asked["where"])
    limit_bytes = MEMORY_BYTES + 8 * spec.csv.max_row_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        if asked["ask"] == "columns":
            return {"columns": _columns(spec, path, where, asked["types"], keeps_bad=asked["keeps_bad"])}
        target = Path(asked["target"])
        num_rows, found = _convert(spec, path, where, asked["types"], target, keeps_bad=asked["keeps_bad"])
        return {"num_rows": num_rows, "unparsable": [list(each) for each in found]}
    except HeadwayError as error:
        kind = "DataError" if isinstance(error, DataError) else type(error).__name__
        return {"refused": kind, "what": error.what, "where": error.where, "advice": error.advice}
    except MemoryError:
        return {"out_of_memory": limit_bytes}
    except OSError as error:
        return {"errno": error.errno or 0, "strerror": error.strerror or type(error).__name__}
    except Exception as error:
        # Whatever a library raises over a strange file is an answer about the file; its words may quote the data.
        return {"raised": type(error).__name__}


def _columns(spec: SourceSpec, path: Path, where: str, types: dict[str, str], *, keeps_bad: bool) -> dict[str, str]:
    if keeps_bad:
        return tolerant_columns(spec, path, where, types)
    try:
        return inferred_columns(spec, path, where, types)
    except UnparsableRow as error:
        raise _of_all(spec, path, where, tolerant_columns(spec, path, where, types), error) from None


def _convert(
    spec: SourceSpec, path: Path, where: str, types: dict[str, str], target: Path, *, keeps_bad: bool
) -> tuple[int, list[Unparsable]]:
    try:
        return _write(file_batches(spec, path, where, types), types, target), []
    except UnparsableRow as error:
        if not keeps_bad:
            raise _of_all(spec, path, where, types, error) from None
    found: list[Unparsable] = []
    return _write(tolerant_batches(spec, path, where, types, found), types, target), found


def _of_all(spec: SourceSpec, path: Path, where: str, types: dict[str, str], first: UnparsableRow) -> DataError:
    found: list[Unparsable] = []
    with contextlib.suppress(DataError):
        num_rows = sum(batch.num_rows for batch in tolerant_batches(spec, path, where, types, found))
        return refused(first, found, num_rows, "row" if spec.format == "csv" else "line")
    return first


def _write(batches: Iterator[pa.RecordBatch], types: dict[str, str], target: Path) -> int:
    import pyarrow.parquet as pq

    conformer, num_rows = Conformer(types, {}), 0
    with pq.ParquetWriter(target, conformer.schema, compression="lz4") as writer:
        for batch in batches:
            writer.write_batch(conformer.conform(batch))
            num_rows += batch.num_rows
    return num_rows


if __name__ == "__main__":
    main()
