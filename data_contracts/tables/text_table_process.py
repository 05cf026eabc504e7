"""The process that parses text tables: a file that makes a parser crash, loop or grow ends this process and no other.

As a process: `python -m headway.data_contracts.tables.text_table_process`.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import DataError, HeadwayError
from headway.data_contracts.tables import decompressed, helper_process
from headway.data_contracts.tables.formats import file_batches, inferred_columns
from headway.data_contracts.tables.row_batches import Conformer
from headway.data_contracts.tables.source_errors import UnparsableRow
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.tables.unparsable_rows import Unparsable, refused, tolerant_batches, tolerant_columns

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_BYTES = 4 << 30
"""What parsing may hold, besides eight times the longest row that the source allows."""


def main() -> None:
    helper_process.serve(answer, on_progress=decompressed.on_read)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    spec, path, where = SourceSpec.model_validate(request["spec"]), Path(request["path"]), str(request["where"])
    limit_bytes = MEMORY_BYTES + 8 * spec.csv.max_row_bytes
    # RLIMIT_DATA bounds private memory; RLIMIT_AS would also count libraries and reserved address space.
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        if request["ask"] == "columns":
            return {"columns": _columns(spec, path, where, request)}
        target = Path(request["target"])
        num_rows, found = _convert(spec, path, where, request["types"], target, keeps_bad=request["keeps_bad"])
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


def _columns(spec: SourceSpec, path: Path, where: str, request: dict[str, Any]) -> dict[str, str]:
    types = request["types"]
    if request["keeps_bad"]:
        return tolerant_columns(spec, path, where, types, request["valueless"])
    try:
        return inferred_columns(spec, path, where, types, request["valueless"])
    except UnparsableRow as error:
        # Whatever is asked of a column without a value, which it may be for want of the rows that are refused here.
        columns = tolerant_columns(spec, path, where, types, valueless="string")
        raise _of_all(spec, path, where, columns, error) from None


def _convert(
    spec: SourceSpec, path: Path, where: str, types: dict[str, str], target: Path, *, keeps_bad: bool
) -> tuple[int, list[Unparsable]]:
    # Reading row by row is slow, so it is done only after the plain reader refused a row.
    try:
        return _write(file_batches(spec, path, where, types), types, target), []
    except UnparsableRow as error:
        if not keeps_bad:
            raise _of_all(spec, path, where, types, error) from None
    found: list[Unparsable] = []
    return _write(tolerant_batches(spec, path, where, types, found), types, target), found


def _of_all(spec: SourceSpec, path: Path, where: str, types: dict[str, str], first: UnparsableRow) -> DataError:
    found: list[Unparsable] = []
    # What is no matter of single rows ends the count; the first row's refusal is then all there is to say.
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
