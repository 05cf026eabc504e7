"""Which key each held-out example has: kept beside the shards, the same bytes however they were made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import FittedState, Link, ShardManifest
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.fold import folds_of
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards import heldout_keys as heldout_keys_module
from headway.training.data.shards.heldout_keys import heldout_keys
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, SourceRows, key_digests
from headway.training.evaluation.scorers import documents_of

LINKS = {"snapshot": Link(kind="snapshot", sha256="a" * 64), "receipt": Link(kind="receipt", sha256="b" * 64)}
NUM_FILES, NUM_ROWS, NUM_USERS = 4, 300, 40
SPEC = ShardSpec.model_validate(
    {
        "encoder": {"kind": "tabular", "numeric": ["user"], "label": "y", "standardise": False},
        "num_groups": 3,
        "split_by": "key",
        "split_key": "user",
        "heldout_fraction": 0.3,
        "rows_per_shard": 50,
    }
)


def read(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    return (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def sources(rows: int = 64, batches: list[pa.RecordBatch] | None = None) -> list[SourceRows]:
    if batches is None:
        draw = np.random.default_rng(0)
        batches = [
            pa.record_batch({"user": draw.integers(0, NUM_USERS, NUM_ROWS), "y": draw.integers(0, 2, NUM_ROWS)})
            for _ in range(NUM_FILES)
        ]
    return [
        SourceRows(
            f"{number}.parquet", f"{number:064x}", batch.num_rows, batch.num_rows, NO_ROWS, partial(read, batch, rows)
        )
        for number, batch in enumerate(batches)
    ]


def shard(
    root: Path, given: list[SourceRows], spec: ShardSpec = SPEC, fitted: FittedState | None = None, **options: Any
) -> tuple[Workspace, ShardManifest]:
    workspace = Workspace.create(str(root))
    fitted = fitted or fit(spec, given, workspace, **LINKS)
    return workspace, write_shards(spec, fitted, given, workspace, **LINKS, **options)


def users_of(workspace: Workspace, manifest: ShardManifest) -> np.ndarray:
    """Of each held-out row, which here is one of its inputs."""
    reader = ShardReader(workspace, manifest, HELDOUT)
    return reader.gather(np.arange(reader.num_rows))["numeric"][:, 0].astype(int)


def test_each_held_out_row_has_the_digest_of_its_key_in_any_group(tmp_path: Path) -> None:
    workspace, manifest = shard(tmp_path, sources())
    users, keys = users_of(workspace, manifest), heldout_keys(workspace, manifest)
    assert keys is not None and len({group.group for group in manifest.groups if group.keys}) > 1
    assert ((keys[:, None] == keys) == (users[:, None] == users)).all()
    assert all(group.keys is None for group in manifest.groups if group.split != HELDOUT)
    by_row = SPEC.model_copy(update={"split_by": "row", "split_key": None})
    assert heldout_keys(*shard(tmp_path, sources(), by_row)) is None


def test_no_bit_depends_on_threads_memory_batches_or_listing_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = shard(tmp_path / "one", sources(), num_threads=1)
    shuffles = []

    def tight(columns: Any, budget_bytes: int, scratch: Path) -> Any:
        shuffles.append(roomy(columns, 1000, scratch))
        return shuffles[-1]

    roomy = heldout_keys_module.BucketShuffle
    monkeypatch.setattr(heldout_keys_module, "BucketShuffle", tight)
    monkeypatch.setattr(heldout_keys_module, "ROWS_AT_ONCE", 7)
    _, two = shard(tmp_path / "two", sources(1000)[::-1], num_threads=4, scratch=tmp_path)
    assert one == two and max(len(shuffle._runs) for shuffle in shuffles) > 3, "some were spilled"


def test_a_document_of_packed_tokens_is_one_example_of_its_key(tmp_path: Path) -> None:
    batches = [
        pa.record_batch(
            {
                "ids": [[7 + (number * 10 + place) % 9] * (1 + place % 5) for place in range(60)],
                "user": [f"author {(number * 60 + place) // 4}" for place in range(60)],
            }
        )
        for number in range(NUM_FILES)
    ]
    encoder = {"kind": "token-ids", "column": "ids", "vocab_size": 99, "sequence_tokens": 8}
    spec = ShardSpec.model_validate(SPEC.model_dump(mode="json", exclude={"encoder"}) | {"encoder": encoder})
    workspace, manifest = shard(tmp_path, sources(batches=batches), spec)
    keys = heldout_keys(workspace, manifest)
    names = [each.name for group in manifest.groups if group.split == HELDOUT for each in documents_of(group)]
    assert keys is not None and len(keys) == len(names) == len(set(names))
    # Two documents of a key lie in one file here, so their numbers among all of it tell which are alike.
    authors = [
        user
        for group in manifest.groups
        if group.split == HELDOUT
        for path in group.documents
        for user in batches[int(path.partition(".")[0])]["user"].to_pylist()
        if key_digests(path, pa.record_batch({"user": [user]}), "user", f"keys of {spec.split_salt}")[0] in keys
    ]
    expected = key_digests("", pa.record_batch({"user": authors}), "user", f"keys of {spec.split_salt}")
    assert keys.tolist() == expected.tolist() and len(set(authors)) < len(authors)


def test_a_key_is_in_one_fold_and_has_one_digest_whatever_the_fold(tmp_path: Path) -> None:
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for fold in folds_of(3):
        workspace, manifest = shard(tmp_path, sources(), SPEC.model_copy(update={"fold": fold}))
        keys = heldout_keys(workspace, manifest)
        assert keys is not None
        found.append((users_of(workspace, manifest), keys))
    users, keys = (np.concatenate(each) for each in zip(*found, strict=True))
    assert len(users) == NUM_FILES * NUM_ROWS and len(np.unique(keys)) == NUM_USERS
    assert ((keys[:, None] == keys) == (users[:, None] == users)).all()
    assert not {*found[0][1].tolist()} & {*found[1][1].tolist()}


@pytest.mark.parametrize("harm", ["flipped", "shorter", "gone"])
def test_a_harmed_file_is_refused_by_name_and_its_group_made_again(tmp_path: Path, harm: str) -> None:
    workspace, manifest = shard(tmp_path, sources())
    file = next(group.keys for group in manifest.groups if group.keys is not None)
    assert file in manifest.files
    path = workspace.local_path(file.path)
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:] if harm == "flipped" else whole[:-8])
    with pytest.raises(IntegrityError) as caught:
        heldout_keys(workspace, manifest)
    assert caught.value.where == file.path
    assert shard(tmp_path, sources())[1] == manifest and sha256_bytes(path.read_bytes()) == file.sha256


def test_shards_that_keep_none_are_not_taken_for_rows_that_are_each_alone(tmp_path: Path) -> None:
    workspace, manifest = shard(tmp_path, sources())
    groups = tuple(group.model_copy(update={"keys": None}) for group in manifest.groups)
    with pytest.raises(IntegrityError, match="do not say which key each held-out row has"):
        heldout_keys(workspace, manifest.model_copy(update={"groups": groups}))


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([7, 8, 7], pa.int8()),
        pa.array(["x", "y", "x"]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1)]),
        pa.array([datetime(2026, 1, 1), datetime(2026, 1, 2), datetime(2026, 1, 1)], pa.timestamp("us")),
    ],
)
def test_whatever_can_split_has_digests_that_say_nothing_of_the_value(keys: pa.Array) -> None:
    first, second, third = key_digests("a.csv", pa.record_batch({"k": keys}), "k", "salt").tolist()
    assert first == third != second and min(first, second) > 1 << 32
    assert key_digests("a.csv", pa.record_batch({"k": keys}), "k", "another").tolist()[0] != first


def test_a_number_has_one_digest_in_columns_of_any_width() -> None:
    narrow, wide = (
        key_digests("", pa.record_batch({"k": pa.array([7, 300 % 100], kind)}), "k", "s").tolist()
        for kind in (pa.int8(), pa.int64())
    )
    assert narrow == wide
    assert key_digests("", pa.record_batch({"k": ["7"]}), "k", "s").tolist() != narrow[:1], "a text is another key"
