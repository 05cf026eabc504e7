"""What holding data to a contract costs, against the same checks written by hand as DuckDB SQL.

    python -m benchmarks.contracts [--json] [--rows 1000000] [--sizes 1,4,16] [--rounds 3]

Both read the same Parquet files of 20 columns, in processes run turn about. By hand means one fused query for all that
one scan can say, and one query for each key, in as many threads and with 1 GB of memory. Ours is all of `validate`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.figures import Figure, show
from benchmarks.measure import Usage, interleaved, median_cpu_s

LIBRARIES = ("duckdb", "great-expectations", "pyarrow")
NUM_FILES = 8
NUM_FLOATS, NUM_INTEGERS, NUM_LABELS, NUM_CODES = 5, 4, 3, 2
FLOATS = [f"f{number}" for number in range(NUM_FLOATS)]
INTEGERS = [f"i{number}" for number in range(NUM_INTEGERS)]
LABELS = [f"label{number}" for number in range(NUM_LABELS)]
CODES = [f"code{number}" for number in range(NUM_CODES)]
CLASSES = ("red", "green", "blue", "black", "white")
OTHERS = ("id", "document", "chunk", "moment", "is_good", "maybe")
COLUMNS = (*OTHERS, *FLOATS, *INTEGERS, *LABELS, *CODES)


def contract_text() -> str:
    columns = [
        "id: {type: int64, unique: true, min: 0}",
        "document: {type: int64, min: 0}",
        "chunk: {type: int64, min: 0, max: 9}",
        "moment: {type: 'timestamp[us]', min: '2020-01-01', max: '2040-01-01'}",
        "is_good: {type: bool}",
        "maybe: {type: double, nullable: true, min: 0, max: 1}",
        *(f"{name}: {{type: double, min: 0, max: 1}}" for name in FLOATS),
        *(f"{name}: {{type: int64, min: 0, max: 1000}}" for name in INTEGERS),
        *(f"{name}: {{type: string, in: [{', '.join(CLASSES)}], max_length: 5}}" for name in LABELS),
        *(f"{name}: {{type: string, pattern: '[a-z]+-[0-9]+'}}" for name in CODES),
    ]
    rules = [
        "rules:",
        "  - {id: usable, column: f0, min: -1, max: 2, action: quarantine}",
        "keys:",
        "  - {id: chunks, columns: [document, chunk]}",
        "statistics:",
        "  - {id: mean-f1, column: f1, statistic: mean, min: 0.4, max: 0.6}",
        "  - {id: sum-i0, column: i0, statistic: sum, min: 1}",
    ]
    head = ["name: bench", "version: 1.0.0", "columns:", *(f"  {column}" for column in columns)]
    return "\n".join([*head, *rules]) + "\n"


def write_data(folder: Path, num_rows: int) -> None:
    """Parquet files of equal numbers of rows: values look random, and are the same every time."""
    import duckdb

    mixed = "hash(range, {})"
    chosen = f"list_value({', '.join(repr(name) for name in CLASSES)})"
    columns = [
        "range AS id, range // 10 AS document, range % 10 AS chunk",
        "TIMESTAMP '2026-01-01' + to_seconds(range) AS moment, range % 3 = 0 AS is_good",
        f"CASE WHEN range % 7 = 0 THEN NULL ELSE {mixed.format(99)} / 18446744073709551616.0 END::DOUBLE AS maybe",
        *(f"({mixed.format(n)} / 18446744073709551616.0)::DOUBLE AS {name}" for n, name in enumerate(FLOATS)),
        *(f"({mixed.format(10 + n)} % 1001)::BIGINT AS {name}" for n, name in enumerate(INTEGERS)),
        *(f"{chosen}[({mixed.format(20 + n)} % 5)::INT + 1] AS {name}" for n, name in enumerate(LABELS)),
        *(f"'code-' || ({mixed.format(30 + n)} % 5000) AS {name}" for n, name in enumerate(CODES)),
    ]
    step = -(-num_rows // NUM_FILES)
    with duckdb.connect(config={"threads": 2, "memory_limit": "1GB"}) as connection:
        for number in range(NUM_FILES):
            source = f"SELECT {', '.join(columns)} FROM range({number * step}, {min(num_rows, (number + 1) * step)})"
            target = folder / f"part-{number:03}.parquet"
            connection.execute(f"COPY ({source}) TO '{target}' (COMPRESSION zstd, ROW_GROUP_SIZE 131072)")


def by_hand(folder: Path) -> None:
    """The same checks, as somebody who knows DuckDB writes them; the limit."""
    import duckdb

    source = f"read_parquet('{folder}/*.parquet', file_row_number = true, filename = true)"
    broken = [
        *(f"{name} IS NULL" for name in COLUMNS if name != "maybe"),
        *("id < 0", "document < 0", "chunk NOT BETWEEN 0 AND 9"),
        "moment NOT BETWEEN TIMESTAMP '2020-01-01' AND TIMESTAMP '2040-01-01'",
        *(f"NOT isfinite({name})" for name in ("maybe", *FLOATS)),
        *(f"{name} NOT BETWEEN 0 AND 1 OR isnan({name})" for name in ("maybe", *FLOATS)),
        *(f"{name} NOT BETWEEN 0 AND 1000" for name in INTEGERS),
        *(f"{name} NOT IN {CLASSES}" for name in LABELS),
        *(f"length({name}) > 5" for name in LABELS),
        *(f"NOT regexp_full_match({name}, '[a-z]+-[0-9]+')" for name in CODES),
    ]
    counts = ", ".join(f"count(*) FILTER ({condition})" for condition in broken)
    means = "count(*), avg(f1), " + ", ".join(f"sum({name})" for name in ("id", "document", "chunk", *INTEGERS))
    with (
        tempfile.TemporaryDirectory() as spill,
        duckdb.connect(config={"threads": 2, "memory_limit": "1GB", "temp_directory": spill}) as connection,
    ):
        row = connection.execute(f"SELECT {counts}, {means} FROM {source}").fetchone()
        bad = f"SELECT filename, file_row_number FROM {source} WHERE NOT (f0 BETWEEN -1 AND 2) OR isnan(f0)"
        excluded = connection.execute(bad).fetchall()
        repeated = [
            connection.execute(
                f"SELECT count(*) FROM (SELECT 1 FROM {source} GROUP BY {key} HAVING count(*) > 1)"
            ).fetchone()
            for key in ("id", "document, chunk")
        ]
    if row is None or any(row[: len(broken)]) or excluded or any(found != (0,) for found in repeated):
        raise AssertionError("the data are not clean")


def by_contract(folder: Path) -> None:
    import pyarrow.parquet as pq

    from headway.data_contracts.engine.validation import validate
    from headway.data_contracts.rules.contract import parse_contract
    from headway.data_contracts.store.documents import Snapshot, SourceFile, StoredFile
    from headway.data_contracts.tables.rows_files import RowsFiles

    paths = sorted(folder.glob("*.parquet"))
    columns = {field.name: str(field.type) for field in pq.read_schema(paths[0])}
    # Digesting the files is the snapshot's work.
    files = tuple(
        SourceFile(path=path.name, size_bytes=1, sha256="0" * 64, num_rows=pq.read_metadata(path).num_rows)
        for path in paths
    )
    rows = RowsFiles(columns=columns, files=files, local=tuple(path.resolve() for path in paths))
    snapshot = Snapshot(format="parquet", columns=columns, num_rows=sum(file.num_rows for file in files), files=files)
    contract = parse_contract(contract_text(), where="bench.yaml")
    stored = StoredFile(path="bench.yaml", size_bytes=1, sha256="0" * 64)
    with tempfile.TemporaryDirectory() as scratch:
        excluded = Path(scratch) / "left-out.parquet"
        receipt = validate(contract, stored, snapshot, rows, Path(scratch), quarantine_file=excluded)
    if not receipt.passed:
        raise AssertionError([each for each in receipt.verdicts if not each.passed])


def nothing(_: Path) -> None:
    """What both pay before the first row: ours imports Great Expectations."""
    import headway.data_contracts.engine.duckdb_engine  # noqa: F401


WORKERS = {"by-hand": by_hand, "contract": by_contract, "imports": nothing}


def measure_size(num_rows: int, rounds: int) -> dict[str, list[Usage]]:
    with tempfile.TemporaryDirectory(prefix="contracts-") as name:
        write_data(Path(name), num_rows)
        commands = {
            worker: (sys.executable, "-m", "benchmarks.contracts", "--worker", worker, "--folder", name)
            for worker in WORKERS
        }
        return interleaved(commands, rounds=rounds)


def figures(num_rows: int, sizes: Sequence[int], rounds: int) -> list[Figure]:
    found: list[Figure] = []
    peaks: dict[int, int] = {}
    for size in sizes:
        usages = measure_size(num_rows * size, rounds)
        hand, ours, imports = (median_cpu_s(usages[name]) for name in ("by-hand", "contract", "imports"))
        rows = f"{num_rows * size:,} rows"
        peaks[size], peak_by_hand = (
            max(usage.peak_rss_bytes for usage in usages[name]) for name in ("contract", "by-hand")
        )
        found += [
            Figure(name=f"by hand, {rows}", value=hand, unit="CPU s"),
            Figure(name=f"contract, {rows}", value=ours, unit="CPU s"),
            Figure(name=f"imports, {rows}", value=imports, unit="CPU s"),
            Figure(name=f"contract / by hand, {rows}", value=ours / hand, ratio_to="DuckDB SQL by hand, CPU"),
            Figure(
                name=f"contract less imports / by hand, {rows}",
                value=(ours - imports) / hand,
                ratio_to="DuckDB SQL by hand, CPU",
                target="<= 1.7",
            ),
            Figure(name=f"peak RSS, {rows}", value=peaks[size] / 1e6, unit="MB"),
            Figure(name=f"peak RSS by hand, {rows}", value=peak_by_hand / 1e6, unit="MB"),
        ]
    for smaller, larger in pairwise(sizes):
        found.append(
            Figure(
                name=f"peak RSS at {larger}x",
                value=peaks[larger] / peaks[smaller],
                ratio_to=f"peak RSS at {smaller}x",
                target="<= 1.25",
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contracts", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows at size 1")
    parser.add_argument("--sizes", default="1", help="multiples of --rows, ascending, such as 1,4,16")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, turn about")
    parser.add_argument("--worker", choices=sorted(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        WORKERS[given.worker](given.folder)
        return
    sizes = [int(size) for size in given.sizes.split(",")]
    found = figures(given.rows, sizes, given.rounds)
    show(found, title="Holding data to a contract", as_json=given.json, libraries=LIBRARIES)


if __name__ == "__main__":
    main()
