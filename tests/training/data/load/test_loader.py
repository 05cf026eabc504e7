from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import Link, ShardManifest
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.published_files import document_path
from headway.training.config.shards import SPLITS, TRAIN
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards import parquet_payload


def as_arrow_reads(built: Any, split: str) -> dict[str, np.ndarray]:
    files = [shard.file.path for group in built.manifest.groups if group.split == split for shard in group.shards]
    tables = [pq.read_table(built.workspace.local_path(path), page_checksum_verification=True) for path in files]
    found = {}
    for column in built.manifest.columns:
        data = b"".join(b"".join(table[column.name].to_pylist()) for table in tables)
        found[column.name] = np.frombuffer(data, dtype=column.dtype).reshape(-1, *column.shape)
    return found


def shard_path(built: Any, number: int = 0) -> Path:
    path: Path = built.workspace.local_path(built.manifest.groups[number].shards[0].file.path)
    return path


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_those_that_arrow_reads_in_manifest_order(shared: Any, split: str) -> None:
    reader, expected = ShardReader(shared.workspace, shared.manifest, split), as_arrow_reads(shared, split)
    found = reader.gather(np.arange(reader.num_rows))
    assert list(found) == ["tokens", "document"]
    for name, values in found.items():
        assert values.dtype == expected[name].dtype
        assert np.array_equal(values, expected[name])


@pytest.mark.process
@given(st.data())
def test_any_rows_in_any_order_are_gathered(shared: Any, data: st.DataObject) -> None:
    reader = opened(shared)
    rows = np.array(data.draw(st.lists(st.integers(0, reader.num_rows - 1), max_size=300)), dtype=np.int64)
    expected = as_arrow_reads_once(shared)
    for name, values in reader.gather(rows).items():
        assert np.array_equal(values, expected[name][rows])


_kept: dict[str, Any] = {}


def opened(built: Any) -> ShardReader:
    reader: ShardReader = _kept.setdefault("reader", ShardReader(built.workspace, built.manifest, TRAIN))
    return reader


def as_arrow_reads_once(built: Any) -> dict[str, np.ndarray]:
    if "arrow" not in _kept:
        _kept["arrow"] = as_arrow_reads(built, TRAIN)
    held: dict[str, np.ndarray] = _kept["arrow"]
    return held


def test_gathered_arrays_belong_to_the_caller(shared: Any) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN)
    one = reader.gather(np.arange(5))["tokens"]
    one[:] = 9
    assert one.flags.c_contiguous
    assert all(reader.gather(np.arange(count))["tokens"].ctypes.data % 64 == 0 for count in range(1, 50))
    assert not np.array_equal(reader.gather(np.arange(5))["tokens"], one)


def test_no_array_is_written_to_again_while_it_is_held(shared: Any) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN)
    whole = reader.gather(np.arange(reader.num_rows))["tokens"]
    held = [reader.gather(np.arange(first, first + 5))["tokens"] for first in range(reader.num_rows - 5)]
    assert all(np.array_equal(found, whole[first : first + 5]) for first, found in enumerate(held))


def test_arrays_outlive_their_reader(shared: Any) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN)
    found, gather = reader.gather(np.arange(3))["tokens"], reader.gather
    del reader
    assert np.array_equal(gather(np.arange(3))["tokens"], found)


@pytest.mark.parametrize("rows", [[-1], [0, -5], [10**6], [2**62], [-(2**62)]])
def test_a_row_out_of_range_is_refused(shared: Any, rows: list[int]) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN)
    with pytest.raises(IndexError, match=rf"a row outside range\({reader.num_rows}\)"):
        reader.gather(np.array(rows))
    with pytest.raises(IndexError):
        reader.gather(np.array([0, reader.num_rows]))


def test_columns_can_be_chosen(shared: Any) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN, ["document"])
    assert list(reader.gather(np.arange(2))) == ["document"]
    with pytest.raises(ConfigError, match=r"no column 'tokns' in the shards; there are tokens, document"):
        ShardReader(shared.workspace, shared.manifest, TRAIN, ["tokns"])


def test_an_unknown_split_is_refused_by_name(shared: Any) -> None:
    with pytest.raises(ConfigError, match=r"no split 'test' in the shards; there is heldout, train"):
        ShardReader(shared.workspace, shared.manifest, "test")


def flips(size_bytes: int, count: int, seed: int) -> list[tuple[int, int]]:
    """Byte and bit: the first and last bytes one by one, where headers and footers are, and random ones anywhere."""
    generator = random.Random(seed)
    edges = [position for position in (*range(40), *range(size_bytes - 260, size_bytes)) if 0 <= position < size_bytes]
    positions = edges + [generator.randrange(size_bytes) for _ in range(count - len(edges))]
    return [(position, generator.randrange(8)) for position in positions]


def test_every_flipped_bit_is_caught_when_the_shard_is_opened(built: Any) -> None:
    group = built.manifest.groups[0]
    manifest = built.manifest.model_copy(
        update={
            "groups": (group.model_copy(update={"shards": group.shards[:1], "num_rows": group.shards[0].num_rows}),)
        }
    )
    path = shard_path(built)
    good, missed = path.read_bytes(), 0
    with path.open("r+b", buffering=0) as file:
        for position, bit in flips(len(good), 1000, seed=0):
            file.seek(position)
            file.write(bytes([good[position] ^ 1 << bit]))
            try:
                ShardReader(built.workspace, manifest, group.split)
                missed += 1
            except IntegrityError as error:
                assert f"{path.name}: the shard is corrupt" in str(error)
            file.seek(position)
            file.write(good[position : position + 1])
    assert missed == 0
    ShardReader(built.workspace, manifest, group.split)


def test_every_flipped_bit_of_a_manifest_is_caught(built: Any) -> None:
    link = built.workspace.publish_document(built.manifest)
    path = built.workspace.local_path(document_path(link))
    good, missed = path.read_bytes(), 0
    for position, bit in flips(len(good), 1000, seed=1):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << bit]) + good[position + 1 :])
        try:
            ShardReader(built.workspace, built.workspace.load(link, ShardManifest), TRAIN)
            missed += 1
        except IntegrityError:
            pass
    assert missed == 0


@pytest.mark.parametrize("change", ["truncated", "extended", "emptied", "gone"])
def test_a_shard_of_another_size_is_refused_by_name(built: Any, change: str) -> None:
    path, group = shard_path(built), built.manifest.groups[0]
    good = path.read_bytes()
    path.write_bytes({"truncated": good[:-1], "extended": good + b"\0"}.get(change, b""))
    if change == "gone":
        path.unlink()
    with pytest.raises(IntegrityError, match=r"shards/[0-9a-f]{64}/00000\.parquet: the shard (has \d+ bytes|is gone)"):
        ShardReader(built.workspace, built.manifest, group.split)


def with_shard(manifest: ShardManifest, **changes: Any) -> tuple[ShardManifest, str]:
    """The manifest with its first shard changed, and that shard's split."""
    group = manifest.groups[0]
    shard = group.shards[0]
    if "path" in changes:
        changes = {"file": shard.file.model_copy(update=changes)}
    shards = (shard.model_copy(update=changes), *group.shards[1:])
    return manifest.model_copy(
        update={"groups": (group.model_copy(update={"shards": shards}), *manifest.groups[1:])}
    ), group.split


@pytest.mark.parametrize("path", ["../outside.parquet", "/etc/passwd", "shards/../../x", "", "shards//x", "shards/./x"])
def test_a_manifest_cannot_point_out_of_the_workspace(shared: Any, path: str) -> None:
    manifest, split = with_shard(shared.manifest, path=path)
    with pytest.raises(IntegrityError, match="leaves the workspace"):
        ShardReader(shared.workspace, manifest, split)


def test_a_link_out_of_the_workspace_is_not_followed(built: Any, tmp_path: Path) -> None:
    path, group = shard_path(built), built.manifest.groups[0]
    path.rename(tmp_path / "elsewhere.parquet")
    path.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(IntegrityError, match="leads out of the workspace"):
        ShardReader(built.workspace, built.manifest, group.split)


def test_a_manifest_that_contradicts_itself_is_refused(shared: Any) -> None:
    shard = shared.manifest.groups[0].shards[0]
    manifest, split = with_shard(shared.manifest, row_groups=shard.row_groups[:-1])
    with pytest.raises(IntegrityError, match="row counts contradict"):
        ShardReader(shared.workspace, manifest, split)
    first, second = shard.row_groups[0].chunks
    far = first.model_copy(update={"offset_bytes": shard.file.size_bytes - 10})
    for chunks in ((far, second), (second,), (first, first, second)):
        row_group = shard.row_groups[0].model_copy(update={"chunks": chunks})
        manifest, split = with_shard(shared.manifest, row_groups=(row_group, *shard.row_groups[1:]))
        with pytest.raises(IntegrityError, match=f"places column {first.column} outside the file"):
            ShardReader(shared.workspace, manifest, split)


@pytest.mark.process
def test_a_rank_loads_without_any_parquet_reader_tokenizer_or_torch() -> None:
    code = (
        "import sys, headway.training.data.load.shard_reader, headway.training.data.order.mixing\n"
        "import headway.training.data.load.prefetch, headway.training.data.encode.packing\n"
        "import headway.training.config.shards\n"
        "print([name for name in ('pyarrow', 'tokenizers', 'torch', 'prefect', 'mlflow', 'pandas', 'duckdb') "
        "if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.long
@pytest.mark.process
@given(st.data())
def test_located_rows_are_read_in_parts(shared: Any, data: st.DataObject) -> None:
    reader = opened(shared)
    rows = np.array(data.draw(st.lists(st.integers(0, reader.num_rows - 1), min_size=1, max_size=60)))
    start = data.draw(st.integers(0, rows.size))
    located = reader.locate(rows)
    for name, expected in reader.gather(rows).items():
        parts = [reader.read(located.part(0, start))[name], reader.read(located.part(start, rows.size))[name]]
        assert np.array_equal(np.concatenate([part.numpy() for part in parts]), expected)


@pytest.mark.parametrize("step", [1, 64])
def test_rows_of_an_older_writer_that_aligned_otherwise_are_gathered_alike(
    shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], build: Any, step: int
) -> None:
    monkeypatch.setattr(parquet_payload, "aligned", lambda offset, _: -(-offset // step) * step)
    built = build(tmp_path, files, shared.spec)
    starts = [
        chunk.offset_bytes
        for group in built.manifest.groups
        for shard in group.shards
        for row_group in shard.row_groups
        for chunk in row_group.chunks
    ]
    width = np.dtype(built.manifest.columns[0].dtype).itemsize * built.manifest.columns[0].shape[0]
    assert any(start % width for start in starts)
    older, newer = (ShardReader(made.workspace, made.manifest, TRAIN) for made in (built, shared))
    rows = np.random.default_rng(0).integers(0, newer.num_rows, 200)
    for found, expected in zip(older.gather(rows).values(), newer.gather(rows).values(), strict=True):
        assert np.array_equal(found, expected)


def test_datasets_encoded_alike_lie_side_by_side(shared: Any) -> None:
    reader = ShardReader(shared.workspace, shared.manifest, TRAIN, also=[shared.manifest])
    half = reader.num_rows // 2
    assert [dataset.first_row for dataset in reader.datasets] == [0, half]
    rows = np.arange(half)
    for values, again in zip(reader.gather(rows).values(), reader.gather(rows + half).values(), strict=True):
        assert np.array_equal(values, again)


def test_datasets_encoded_differently_are_not_mixed(shared: Any) -> None:
    other = shared.manifest.model_copy(update={"fitted": Link(kind="fitted", sha256="9" * 64)})
    with pytest.raises(ConfigError, match="cannot be mixed with manifest"):
        ShardReader(shared.workspace, shared.manifest, TRAIN, also=[other])
