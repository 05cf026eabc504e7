"""The manifest prints as a table, of the pipeline that was asked for and of its newest shards."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import Link, PayloadColumn, Shard, ShardGroup, ShardManifest, StoredFile
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.console import plain_console
from headway.flows.show.shards import ShardTable, print_shards, read_shards
from headway.tasks.rows.fitted_refs import fitted_ref

FITTED, OTHER_FITTED = (Link(kind="fitted", sha256=digit * 64) for digit in "ab")


def group(number: int, split: str, num_rows: int) -> ShardGroup:
    files = [StoredFile(path=f"shards/{number}-{part}", size_bytes=num_rows * 500, sha256="0" * 64) for part in "ab"]
    return ShardGroup(
        group=number,
        split=split,
        num_rows=num_rows,
        num_samples=num_rows,
        documents=tuple(f"{number}/{name}.txt" for name in "xyz"),
        shards=tuple(Shard(file=file, num_rows=num_rows // 2, row_groups=()) for file in files),
    )


def manifest(*groups: ShardGroup, fitted: Link = FITTED) -> ShardManifest:
    link = Link(kind="snapshot", sha256="c" * 64)
    return ShardManifest(
        snapshot=link,
        receipt=link,
        fitted=fitted,
        spec={"encoder": {"kind": "byte-pair"}},
        columns=(PayloadColumn(name="tokens", dtype="uint16", shape=(257,)),),
        groups=groups,
        content_sha256="d" * 64,
        libraries={},
    )


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    (tmp_path / "contract.yaml").write_text("name: tiny\nversion: 1.0.0\ncolumns: {text: {type: string}}\n")
    (tmp_path / "tiny.yaml").write_text(
        "pipeline: tiny\nsource: {format: text-files, uri: texts}\ncontract: contract.yaml\nregistry: {model: tiny}\n"
    )
    return Workspace.create(str(tmp_path / "workspace"))


def keep(workspace: Workspace, made: ShardManifest, unix_s: float) -> None:
    inputs = {"fitted": made.fitted.sha256, "unix_s": unix_s}
    provenance = {"unix_s": unix_s, "duration_s": 1.0}
    stages.record(workspace, "shard", inputs, workspace.publish_document(made), provenance=provenance)


def shards(workspace: Workspace) -> ShardTable:
    return read_shards("tiny.yaml", workspace.uri)


def test_groups_and_splits_have_their_rows_bytes_and_files(workspace: Workspace) -> None:
    refs.move(workspace, fitted_ref("tiny"), FITTED, expected=None, reason="first", detail={})
    keep(workspace, manifest(group(0, "train", 300), group(1, "train", 100), group(0, "heldout", 10)), 1.0)
    found = shards(workspace)
    assert [(row.split, row.group, row.num_rows, row.rows_to_mean) for row in found.groups] == [
        *(("train", "0", 300, 1.5), ("train", "1", 100, 0.5), ("heldout", "0", 10, 1.0))
    ]
    assert found.groups[0].size_bytes == 300_000
    assert (found.groups[0].num_files, found.groups[0].num_shards) == (3, 2)
    assert found.columns == {"tokens": "uint16[257]"}


def test_classes_codec_and_folders_are_shown_where_there_are_any(workspace: Workspace) -> None:
    refs.move(workspace, fitted_ref("tiny"), FITTED, expected=None, reason="first", detail={})
    plain = group(0, "train", 40)
    counts = ((5, 10), (15, 10))
    shards_of_classes = [
        shard.model_copy(update={"codec": "zstd", "label_counts": each})
        for shard, each in zip(plain.shards, counts, strict=True)
    ]
    keep(workspace, manifest(plain.model_copy(update={"name": "day=1", "shards": tuple(shards_of_classes)})), 1.0)
    (row,) = shards(workspace).groups
    assert (row.group, row.codec, row.label_shares) == ("day=1", "zstd", [0.5, 0.5])
    stream = io.StringIO()
    print_shards(shards(workspace), plain_console(stream, width=120))
    assert "codec zstd" in stream.getvalue()
    assert "day=1" in stream.getvalue()
    assert "50 50" in stream.getvalue()


def test_the_newest_shards_of_this_pipeline_are_shown(workspace: Workspace) -> None:
    refs.move(workspace, fitted_ref("tiny"), FITTED, expected=None, reason="first", detail={})
    keep(workspace, manifest(group(0, "train", 1)), 1.0)
    keep(workspace, manifest(group(0, "train", 2)), 3.0)
    keep(workspace, manifest(group(0, "train", 3)), 2.0)
    keep(workspace, manifest(group(0, "train", 4), fitted=OTHER_FITTED), 9.0)
    assert [row.num_rows for row in shards(workspace).groups] == [2]


def test_a_pipeline_without_shards_is_told_what_to_do(workspace: Workspace) -> None:
    workspace.publish("documents/other", b"{}")
    with pytest.raises(ConfigError, match=r"no shards here yet.*retrain"):
        shards(workspace)


def test_the_table_ends_every_split_with_what_it_sums_to(workspace: Workspace) -> None:
    refs.move(workspace, fitted_ref("tiny"), FITTED, expected=None, reason="first", detail={})
    keep(workspace, manifest(group(0, "train", 3000), group(1, "train", 1000), group(0, "heldout", 10)), 1.0)
    stream = io.StringIO()
    print_shards(shards(workspace), plain_console(stream, width=100))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert ["train", "0", "3", "3,000", "1.50", "3,000", "2", "3.00"] in lines
    assert ["train", "2", "in", "all", "6", "4,000", "4,000", "4", "4.00"] in lines
    assert ["heldout", "1", "in", "all", "3", "10", "10", "2", "0.01"] in lines
