"""One contender of `benchmarks.sharding`, in a process of its own: it prints CPU and wall seconds of the work alone.

    python -m benchmarks.sharding_work NAME SOURCE TARGET CODEC [MEMORY_MB]

Imports happen before the clock starts. The peers need pyarrow, duckdb or polars, and nothing of Headway.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.data_contracts.sources.reading import SourceSpec
    from headway.data_contracts.store.documents import SourceFile
    from headway.data_contracts.tables.digest_cache import DigestCache
    from headway.training.data.shards.splits import Read

NUM_FLOATS, NUM_INTS = 15, 5
ROWS_PER_ROW_GROUP = 1 << 16
Work = Callable[[], None]


def raw(source: Path, target: Path, codec: str) -> Work:
    """The limit: every file read and written again by pyarrow, in the cheapest way, in no new order."""
    import pyarrow.parquet as pq

    def work() -> None:
        for path in sorted(source.iterdir()):
            pq.write_table(
                pq.read_table(path),
                target / path.name,
                compression=codec,
                compression_level=1 if codec == "zstd" else None,
                use_dictionary=False,
                write_statistics=False,
                row_group_size=ROWS_PER_ROW_GROUP,
            )

    return work


def duckdb(source: Path, target: Path, codec: str) -> Work:
    import duckdb as library

    level = ", COMPRESSION_LEVEL 1" if codec == "zstd" else ""
    compression = {"none": "uncompressed"}.get(codec, codec)

    def work() -> None:
        connection = library.connect(config={"threads": 2, "temp_directory": str(target / "spill")})
        connection.execute(
            "COPY (SELECT * EXCLUDE (filename, file_row_number) FROM "
            f"read_parquet('{source}/*.parquet', filename=true, file_row_number=true) "
            "ORDER BY hash(filename, file_row_number)) "
            f"TO '{target / 'all.parquet'}' (FORMAT parquet, COMPRESSION {compression}{level})"
        )

    return work


def polars(source: Path, target: Path, codec: str) -> Work:
    import polars as library  # type: ignore[import-not-found]

    def work() -> None:
        compression: Any = {"none": "uncompressed"}.get(codec, codec)
        frame = library.read_parquet(source / "*.parquet").sample(fraction=1.0, shuffle=True, seed=0)
        frame.write_parquet(target / "all.parquet", compression=compression, statistics=False)

    return work


def headway(source: Path, target: Path, codec: str, memory_mb: int = 512) -> Work:
    import numpy as np
    import pyarrow as pa

    from headway.data_contracts.sources.reading import SourceSpec
    from headway.data_contracts.store.documents import FittedState, Link
    from headway.data_contracts.store.publication import Workspace
    from headway.data_contracts.tables.digest_cache import DigestCache
    from headway.training.config.shards import ShardSpec
    from headway.training.data.encode import source_columns, tabular
    from headway.training.data.encode.encoders import libraries
    from headway.training.data.shards.sharding import write_shards
    from headway.training.data.shards.splits import NO_ROWS, SourceRows

    assert source_columns and tabular  # imported lazily, and no part of the work
    pa.array(np.zeros(1))  # the first one imports pandas
    floats, ints = [f"f{number}" for number in range(NUM_FLOATS)], [f"i{number}" for number in range(NUM_INTS)]
    spec = ShardSpec.model_validate(
        {
            "encoder": {"kind": "tabular", "numeric": floats, "categorical": ints},
            "codec": codec,
            "split_by": "row",
            "rows_per_row_group": ROWS_PER_ROW_GROUP,
            "memory_mb": memory_mb,
            "shard_mb": min(64, memory_mb // 4),
        }
    )
    snapshot, receipt = Link(kind="snapshot", sha256="a" * 64), Link(kind="receipt", sha256="b" * 64)
    fitted = FittedState(
        encoder="tabular",
        spec=spec.encoder.model_dump(mode="json"),
        snapshot=snapshot,
        receipt=receipt,
        files=(),
        libraries=libraries(spec.encoder),
        statistics={
            "numeric": [{"column": name, "num_values": 1, "mean": 0.5, "deviation": 2.0} for name in floats],
            "categorical": [{"column": name, "values": list(range(1000))} for name in ints],
            "label": None,
        },
    )
    # As in the flow, whose snapshot has just digested every file.
    digests = DigestCache(target / "digests.json")
    rows = SourceSpec(format="parquet", uri=str(source.resolve()))
    sources = [
        SourceRows(file.path, file.sha256, file.size_bytes, file.num_rows, NO_ROWS, read)
        for file, read in source_files(rows, source, digests)
    ]
    workspace = Workspace.create(str(target))

    def work() -> None:
        write_shards(spec, fitted, sources, workspace, snapshot=snapshot, receipt=receipt, scratch=target)

    return work


def source_files(spec: SourceSpec, source: Path, digests: DigestCache) -> Iterator[tuple[SourceFile, Read]]:
    """The files as a snapshot names them, with what reads and proves them."""
    from headway.data_contracts.sources.reading import read_rows
    from headway.data_contracts.store.documents import SourceFile
    from headway.data_contracts.tables.parquet_files import read_footer

    for path in sorted(source.iterdir()):
        footer, (sha256, size_bytes) = read_footer(path, path.name), digests.digest(path)
        file = SourceFile(path=path.name, size_bytes=size_bytes, sha256=sha256, num_rows=footer.num_rows)
        yield file, partial(read_rows, spec, file, base=source, columns=footer.columns, digests=digests)


CONTENDERS: dict[str, Callable[..., Work]] = {"raw": raw, "duckdb": duckdb, "polars": polars, "headway": headway}


def main() -> None:
    name, source, target, codec, *memory = sys.argv[1:]
    shutil.rmtree(target, ignore_errors=True)
    Path(target).mkdir(parents=True)
    work = CONTENDERS[name](Path(source), Path(target), codec, *map(int, memory))
    before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    work()
    used = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s, "before_bytes": before_bytes}
    print(json.dumps(used))


if __name__ == "__main__":
    main()
