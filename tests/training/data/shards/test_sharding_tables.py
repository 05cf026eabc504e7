"""Sharding of tables: rows that go to both splits, spills, faults and growth."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import FittedState, Link, ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.training.config.shards import HELDOUT, SPLITS, TRAIN, ShardSpec, SkewLimits
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards import group_writer
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, SourceRows
from tests.warm_programs import run_program

LINKS = {"snapshot": Link(kind="snapshot", sha256="a" * 64), "receipt": Link(kind="receipt", sha256="b" * 64)}
SPEC = ShardSpec.model_validate(
    {
        "encoder": {
            "kind": "tabular",
            "numeric": ["row", "x"],
            "categorical": ["c"],
            "label": "y",
            "standardise": False,
        },
        "num_groups": 3,
        "split_by": "row",
        "heldout_fraction": 0.25,
        "rows_per_row_group": 100,
        "rows_per_shard": 250,
    }
)
NUM_FILES, ROWS_PER_FILE = 6, 300


def table(file: int, num_rows: int = ROWS_PER_FILE) -> pa.Table:
    """`row` names every row of all files."""
    random = np.random.default_rng(file)
    return pa.table(
        {
            "row": np.arange(num_rows) + file * 10_000,
            "x": random.normal(size=num_rows).astype(np.float32),
            "c": random.integers(0, 5, num_rows),
            "y": random.integers(0, 3, num_rows),
            "user": [f"user {number}" for number in random.integers(0, 40, num_rows)],
        }
    )


def write_source(folder: Path) -> Path:
    for file in range(NUM_FILES):
        path = folder / f"day={file % 3}" / f"part-{file}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(file), path, row_group_size=100)
    return folder


def read(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_rows)


def sources_of(folder: Path, excluded: dict[str, list[int]] | None = None, batch_rows: int = 64) -> list[SourceRows]:
    return [
        SourceRows(
            path=(relative := path.relative_to(folder).as_posix()),
            sha256=sha256_file(path),
            size_bytes=path.stat().st_size,
            num_rows=pq.read_metadata(path).num_rows,
            excluded=np.array((excluded or {}).get(relative, NO_ROWS), dtype=np.int64),
            read=partial(read, path, batch_rows),
        )
        for path in sorted(folder.rglob("*.parquet"))
    ]


def shard(root: Path, sources: list[SourceRows], spec: ShardSpec = SPEC, **options: Any) -> ShardManifest:
    workspace = Workspace.create(str(root))
    fitted = options.pop("fitted", None) or fit(spec, sources, workspace, **LINKS)
    return write_shards(spec, fitted, sources, workspace, **LINKS, **options)


def rows_in(root: Path, manifest: ShardManifest, split: str) -> list[int]:
    reader = ShardReader(Workspace(str(root)), manifest, split, ["numeric"])
    return reader.gather(np.arange(reader.num_rows))["numeric"][:, 0].astype(int).tolist()


def tree(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("tables"))


def all_rows(source: Path) -> list[int]:
    return sorted(pq.read_table(source, columns=["row"])["row"].to_pylist())


@pytest.mark.parametrize("group_by", ["hash", "file", "folder"])
def test_every_row_lands_in_one_split_once_and_shuffled(source: Path, tmp_path: Path, group_by: str) -> None:
    manifest = shard(tmp_path, sources_of(source), SPEC.model_copy(update={"group_by": group_by}))
    train, heldout = (rows_in(tmp_path, manifest, split) for split in SPLITS)
    assert sorted(train + heldout) == all_rows(source)
    assert len(heldout) / (NUM_FILES * ROWS_PER_FILE) == pytest.approx(0.25, abs=0.04)
    assert train != sorted(train)
    num_groups = {"hash": 3, "file": 6, "folder": 3}[group_by]
    names = {group.name for group in manifest.groups}
    assert len(names) == num_groups or group_by == "hash"
    assert group_by == "hash" or all(
        path.startswith(group.name) for group in manifest.groups for path in group.documents
    )
    for group in manifest.groups:
        assert sum(group.samples_by_document) == group.num_samples == group.num_rows
        assert sum(sum(held.label_counts) for held in group.shards) == group.num_rows


def test_rows_in_quarantine_are_in_no_shard_and_move_no_other(source: Path, tmp_path: Path) -> None:
    out = {"day=0/part-0.parquet": [0, 63, 64, 299], "day=1/part-4.parquet": [150]}
    fitted = fit(SPEC, sources_of(source), Workspace.create(str(tmp_path)), **LINKS)
    whole = shard(tmp_path, sources_of(source), fitted=fitted)
    less = shard(tmp_path, sources_of(source, out), fitted=fitted)
    for split in SPLITS:
        before, after = rows_in(tmp_path, whole, split), rows_in(tmp_path, less, split)
        assert after == [row for row in before if row not in {0, 63, 64, 299, 40_150}]


def test_no_bit_depends_on_threads_memory_batches_or_listing_order(source: Path, tmp_path: Path) -> None:
    one = shard(tmp_path / "one", sources_of(source), num_threads=1)
    turned = sources_of(source, batch_rows=1000)[::-1]
    spec = SPEC.model_copy(update={"memory_mb": 8})
    assert shard(tmp_path / "two", turned, spec, num_threads=4, scratch=tmp_path) == one
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_no_bit_depends_on_whether_rows_were_spilled(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = shard(tmp_path / "calm", sources_of(source))
    spilled = []

    def tight(columns: Any, budget_bytes: int, scratch: Path) -> Any:
        spilled.append(group_writer_shuffle(columns, 3000, scratch))
        return spilled[-1]

    group_writer_shuffle = group_writer.BucketShuffle
    monkeypatch.setattr(group_writer, "BucketShuffle", tight)
    assert shard(tmp_path / "tight", sources_of(source)) == calm
    assert max(len(shuffle._runs) for shuffle in spilled) > 3
    assert tree(tmp_path / "calm") == tree(tmp_path / "tight")


def test_rows_of_one_key_stay_together_and_never_move_as_data_grow(source: Path, tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"split_by": "key", "split_key": "user"})

    def users(root: Path, manifest: ShardManifest, folder: Path) -> dict[str, set[str]]:
        of_row = {row["row"]: row["user"] for row in pq.read_table(folder).to_pylist()}
        return {split: {of_row[row] for row in rows_in(root, manifest, split)} for split in SPLITS}

    before = users(tmp_path / "a", shard(tmp_path / "a", sources_of(source), spec), source)
    assert before[TRAIN] and before[HELDOUT] and not before[TRAIN] & before[HELDOUT]
    grown = write_source(tmp_path / "grown")
    pq.write_table(table(9, 900), grown / "new.parquet")
    after = users(tmp_path / "b", shard(tmp_path / "b", sources_of(grown), spec), grown)
    assert after == before | {split: after[split] for split in SPLITS} and before[HELDOUT] <= after[HELDOUT]
    assert before[TRAIN] <= after[TRAIN] and not after[TRAIN] & after[HELDOUT]


def test_a_file_that_grew_moves_none_of_its_rows_to_the_other_split(source: Path, tmp_path: Path) -> None:
    before = shard(tmp_path / "a", sources_of(source))
    grown = write_source(tmp_path / "grown")
    path = grown / "day=0" / "part-0.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path, partitioning=None), table(8)]), path)
    after = shard(tmp_path / "b", sources_of(grown))
    for split in SPLITS:
        assert set(rows_in(tmp_path / "a", before, split)) <= set(rows_in(tmp_path / "b", after, split))


class Counting:
    """Remembers digests and counts the files that are really read."""

    def __init__(self) -> None:
        self.known: dict[tuple[Path, int, int], str] = {}
        self.num_read = 0

    def digest(self, path: Path, algorithm: str = "sha256") -> tuple[str, int]:
        assert algorithm == "sha256", "of shards"
        status = path.stat()
        name = (path, status.st_mtime_ns, status.st_ino)
        if name not in self.known:
            self.num_read += 1
            self.known[name] = sha256_file(path)
        return self.known[name], status.st_size


def test_a_new_partition_costs_its_own_size(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth by one folder: one group is encoded, only the new files are read, no old shard is read again."""
    spec = SPEC.model_copy(update={"group_by": "folder"})
    grown, digests = write_source(tmp_path / "grown"), Counting()
    root = tmp_path / "workspace"
    workspace = Workspace.create(str(root))
    fitted = fit(spec, sources_of(grown), workspace, **LINKS)
    shard(root, sources_of(grown), spec, fitted=fitted, digests=digests)
    shard(root, sources_of(grown), spec, fitted=fitted, digests=digests)
    (grown / "day=3").mkdir()
    pq.write_table(table(7), grown / "day=3" / "part-7.parquet")
    reads: list[str] = []

    def counted(source_rows: SourceRows) -> SourceRows:
        def noting() -> Iterator[pa.RecordBatch]:
            reads.append(source_rows.path)
            return source_rows.read()

        return source_rows._replace(read=noting)

    assert digests.num_read > 0
    digests.num_read = 0
    monkeypatch.setattr(Workspace, "verify", lambda *_: pytest.fail("read past the remembered digests"))
    before = set(root.rglob("group.json"))
    manifest = shard(root, [counted(held) for held in sources_of(grown)], spec, fitted=fitted, digests=digests)
    assert reads == ["day=3/part-7.parquet"]
    assert digests.num_read == 0
    assert len(set(root.rglob("group.json")) - before) == 1
    assert sorted({group.name for group in manifest.groups}) == ["day=0", "day=1", "day=2", "day=3"]


def test_a_shard_damaged_behind_the_cache_is_noticed(source: Path, tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    fitted = fit(SPEC, sources_of(source), workspace, **LINKS)
    digests = DigestCache(tmp_path / "digests")
    manifest = shard(tmp_path, sources_of(source), fitted=fitted, digests=digests)
    expected = tree(tmp_path)
    path = workspace.local_path(manifest.groups[0].shards[0].file.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert shard(tmp_path, sources_of(source), fitted=fitted, digests=digests) == manifest
    assert tree(tmp_path) == expected


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("user", [None] * ROWS_PER_FILE, "column 'user' decides the split and is null"),
        ("user", [0.5] * ROWS_PER_FILE, "column 'user' is double; a split can be by"),
        ("user", None, "has no column 'user'"),
    ],
)
def test_a_key_that_cannot_split_is_refused_by_name(
    tmp_path: Path, column: str, values: list[Any] | None, message: str
) -> None:
    folder = write_source(tmp_path / "source")
    path = folder / "day=1" / "part-4.parquet"
    held = pq.read_table(path, partitioning=None).drop_columns([column])
    pq.write_table(held if values is None else held.append_column(column, pa.array(values)), path)
    spec = SPEC.model_copy(update={"split_by": "key", "split_key": "user"})
    with pytest.raises(DataError, match=f"day=1/part-4.parquet: {message}"):
        shard(tmp_path / "workspace", sources_of(folder), spec)


def test_a_file_with_other_rows_than_its_snapshot_says_is_refused(source: Path, tmp_path: Path) -> None:
    sources = sources_of(source)
    workspace = Workspace.create(str(tmp_path))
    fitted = fit(SPEC, sources, workspace, **LINKS)
    sources[2] = sources[2]._replace(num_rows=301)
    with pytest.raises(DataError, match="the file has 300 rows, its snapshot says 301"):
        write_shards(SPEC, fitted, sources, workspace, **LINKS)


def test_uneven_groups_are_refused_by_name_and_figure(tmp_path: Path) -> None:
    folder = write_source(tmp_path / "source")
    pq.write_table(table(0, 3000), folder / "day=0" / "part-0.parquet")
    spec = SPEC.model_copy(update={"group_by": "folder", "skew": SkewLimits(max_rows_ratio=1.5)})
    with pytest.raises(DataError, match=r"group day=0 of split train: has 2,4\d\d rows, 2\.\d\d times the mean of 3"):
        shard(tmp_path / "workspace", sources_of(folder), spec)
    lenient = spec.model_copy(update={"skew": SkewLimits(max_rows_ratio=3)})
    assert shard(tmp_path / "workspace", sources_of(folder), lenient).num_rows(TRAIN) > 3000


def test_a_limit_on_more_classes_than_shards_count_is_refused_before_a_shard_is_written(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    numbers = np.arange(3000)
    rows = pa.table({"row": numbers, "x": numbers * 0.5, "c": numbers % 3, "y": numbers})
    pq.write_table(rows, tmp_path / "source" / "a.parquet")
    sources = sources_of(tmp_path / "source")
    asked = SPEC.model_copy(update={"skew": SkewLimits(max_label_difference=0.5)})
    with pytest.raises(ConfigError, match=r"max_label_difference: .* there are 2,\d\d\d classes to predict"):
        shard(tmp_path / "workspace", sources, asked)
    assert not (tmp_path / "workspace" / "shards").exists()


def test_a_memory_bound_that_cannot_hold_a_shard_is_refused_before_anything_is_read(
    source: Path, tmp_path: Path
) -> None:
    workspace = Workspace.create(str(tmp_path))
    fitted = fit(SPEC, sources_of(source), workspace, **LINKS)
    spec = SPEC.model_copy(update={"rows_per_shard": 1 << 20, "memory_mb": 8})
    sources = [held._replace(read=lambda: pytest.fail("read")) for held in sources_of(source)]
    with pytest.raises(ConfigError, match=r"a shard of 1,048,576 rows has 17 MB.*memory_mb \(8\)"):
        write_shards(spec, fitted, sources, workspace, **LINKS)


PROGRAM = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_sharding_tables as tables
from headway.training.data.shards import bucket_shuffle, group_writer

source, root, fatal, budget = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
shuffle, count = group_writer.BucketShuffle, [0]
group_writer.BucketShuffle = lambda columns, _, scratch: shuffle(columns, budget, scratch)

def dying(function, at):
    def called(*arguments):
        count[0] += 1
        if count[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return called

if fatal == "spill":
    bucket_shuffle._write_all = dying(bucket_shuffle._write_all, 40)
elif fatal == "read":
    bucket_shuffle._DiskRun._read = dying(bucket_shuffle._DiskRun._read, 30)
scratch = root.with_name("scratch")
scratch.mkdir(exist_ok=True)
tables.shard(root, tables.sources_of(source), scratch=scratch, num_threads=1)
"""


@pytest.mark.process
@pytest.mark.parametrize("fatal", ["spill", "read"])
def test_a_writer_killed_over_its_spill_leaves_nothing_and_the_next_completes(
    source: Path, tmp_path: Path, fatal: str
) -> None:
    def run(root: Path, fatal: str) -> int:
        arguments = [Path(__file__).parent, source, root, fatal, 3000]
        return run_program([sys.executable, "-c", PROGRAM, *arguments], timeout=300).returncode

    assert run(tmp_path / "killed", fatal) == -signal.SIGKILL
    assert not list((tmp_path / "scratch").iterdir())
    assert len(list(tmp_path.glob("killed/shards/*/group.json"))) < 3
    assert run(tmp_path / "killed", "") == 0
    shard(tmp_path / "calm", sources_of(source))
    assert tree(tmp_path / "killed") == tree(tmp_path / "calm")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is refused to root")
def test_lost_permission_is_named_and_nothing_is_published(source: Path, tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    fitted = fit(SPEC, sources_of(source), workspace, **LINKS)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards").chmod(0o500)
    with pytest.raises(EnvironmentProblem, match="writing is refused"):
        write_shards(SPEC, fitted, sources_of(source), workspace, **LINKS)
    (tmp_path / "shards").chmod(0o700)
    assert not list((tmp_path / "shards").rglob("group.json"))


def test_statistics_come_from_the_training_split_alone(source: Path, tmp_path: Path) -> None:
    sources = sources_of(source)
    fitted = fit(SPEC, sources, Workspace.create(str(tmp_path)), **LINKS, num_threads=3)
    manifest = shard(tmp_path, sources, fitted=fitted)
    train = rows_in(tmp_path, manifest, TRAIN)
    row, _ = fitted.statistics["numeric"]
    assert row["num_values"] == len(train)
    assert row["mean"] == pytest.approx(float(np.mean(train)))
    assert row["deviation"] == pytest.approx(float(np.std(train)))
    assert fit(SPEC, sources[::-1], Workspace(str(tmp_path)), **LINKS, num_threads=1) == fitted


def test_a_fitted_state_is_the_same_document_after_a_round_trip(source: Path, tmp_path: Path) -> None:
    fitted = fit(SPEC, sources_of(source), Workspace.create(str(tmp_path)), **LINKS)
    again = FittedState.from_bytes(fitted.to_bytes(), where="")
    assert again == fitted
    assert hashlib.sha256(again.to_bytes()).hexdigest() == fitted.sha256
