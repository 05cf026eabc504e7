"""Slices by a column of one's choice: of the very rows that were judged, whatever the shards did to their order."""

from __future__ import annotations

import datetime
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store.documents import ContractReceipt, Link, ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.tasks.rows.set_apart import any_of, rows_that_rank
from headway.tasks.rows.slices import MAX_NUMBERS, MAX_VALUES, SliceBy, labels_of, require_columns
from headway.tasks.rows.source_rows import source_rows
from headway.training.config.given_split import HELD_OUT, TRAINS, GivenSplit
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.source_values import heldout_where, values_of_split
from headway.training.evaluation.scorers import documents_of, places_of_examples

TABLES = SourceSpec(uri="data", format="parquet", include=("**/*.parquet",))
NUM_FILES, NUM_ROWS = 5, 60


class Source:
    """Files, their snapshot, and a receipt for it that leaves out rows of its choice."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        self.folder, self.workspace = folder, workspace
        self.digests = DigestCache(folder / "digests.json")

    def shards(self, source: SourceSpec, spec: ShardSpec, excluded: dict[str, list[int]]) -> ShardManifest:
        workspace = self.workspace
        self.source = source
        self.snapshot = workspace.publish_document(take_snapshot(source, base=self.folder, cache=self.digests))
        rows = [(path, row) for path, numbers in excluded.items() for row in numbers]
        table = pa.table(
            {
                "path": pa.array([path for path, _ in rows], pa.string()),
                "row": pa.array([row for _, row in rows], pa.int64()),
                "rule_ids": pa.array([["r"] for _ in rows], pa.list_(pa.string())),
            }
        )
        pq.write_table(table, self.folder / "quarantine.parquet")
        quarantine = workspace.publish_file(self.folder / "quarantine.parquet", "quarantine/some.parquet")
        self.receipt = workspace.publish_document(
            ContractReceipt(
                contract=workspace.publish("contracts/made-up.yaml", b""),
                contract_name="made-up",
                contract_version="1.0.0",
                snapshot=self.snapshot,
                passed=True,
                num_rows=1,
                num_quarantined=len(rows),
                quarantine=quarantine if rows else None,
                verdicts=(),
                metrics={},
            )
        )
        given = {"snapshot": self.snapshot, "receipt": self.receipt}
        fitted = fit(spec, self.rows(), workspace, **given)
        workspace.publish_document(fitted)
        return write_shards(spec, fitted, self.rows(), workspace, **given)

    def rows(self) -> list[Any]:
        return source_rows(self.workspace, self.folder, self.source, self.snapshot, self.receipt, self.digests)


@pytest.fixture
def source(tmp_path: Path, workspace: Workspace) -> Source:
    return Source(tmp_path, workspace)


def write_tables(folder: Path) -> None:
    for number in range(NUM_FILES):
        path = folder / "data" / f"month={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = [1000 * number + row for row in range(NUM_ROWS)]
        regions = [("north", "south", None)[each % 3] for each in ids]
        columns = {"id": ids, "x": [0.5 * each for each in ids], "region": pa.array(regions).dictionary_encode()}
        pq.write_table(pa.table(columns), path, row_group_size=7)


@pytest.mark.parametrize("split_by", ["row", "file", "key"])
@pytest.mark.parametrize("memory_mb", [8, 512])
def test_each_row_of_the_shards_gets_the_values_of_its_own_row_of_the_source(
    source: Source, split_by: str, memory_mb: int
) -> None:
    write_tables(source.folder)
    spec = ShardSpec.model_validate(
        {
            "encoder": {"kind": "tabular", "numeric": ["x"], "label": "id", "label_kind": "number"},
            **{"num_groups": 3, "split_by": split_by, "heldout_fraction": 0.4, "memory_mb": memory_mb},
            **({"split_key": "id"} if split_by == "key" else {}),
            **{"rows_per_row_group": 8, "rows_per_shard": 16, "split_salt": "some"},
        }
    )
    excluded = {"month=0/2.parquet": [0, 3, 59], "month=1/1.parquet": [5]}
    manifest = source.shards(TABLES, spec, excluded)
    assert len({group.group for group in manifest.groups}) > 1

    found = values_of_split(source.rows(), manifest, HELDOUT, ["id", "region", "month", "path"], in_row_order=True)
    reader = ShardReader(source.workspace, manifest, HELDOUT)
    labels = reader.gather(np.arange(reader.num_rows))["label"].reshape(-1)
    ids = found["id"].to_pylist()
    assert ids == labels.astype(int).tolist() and len(set(ids)) == len(ids) > 20
    for each, region, month, path in zip(*(found[name].to_pylist() for name in found), strict=True):
        assert region == ("north", "south", None)[each % 3]
        assert (month, path) == (f"{each // 1000 % 2}", f"month={each // 1000 % 2}/{each // 1000}.parquet")
        assert each % 1000 not in excluded.get(path, ())


@pytest.mark.parametrize("split_by", ["row", "file", "key"])
def test_what_the_split_keeps_together_ranks_trials_or_judges_together_and_stays_there_as_data_grow(
    source: Source, split_by: str
) -> None:
    spec = ShardSpec.model_validate(
        {
            "encoder": {"kind": "tabular", "numeric": ["x"], "label": "id", "label_kind": "number"},
            **{"num_groups": 3, "split_by": split_by, "heldout_fraction": 0.6, "split_salt": "some"},
            **({"split_key": "group"} if split_by == "key" else {}),
        }
    )
    ranks: list[dict[int, bool]] = []
    for num_files in (9, 14):
        for number in range(num_files):
            ids = [100 * number + row for row in range(20)]
            path = source.folder / "data" / f"{number}.parquet"
            path.parent.mkdir(exist_ok=True)
            columns = {"id": ids, "x": [0.5 * each for each in ids], "group": [each % 30 for each in ids]}
            pq.write_table(pa.table(columns), path)
        manifest = source.shards(TABLES, spec, {})
        values = values_of_split(source.rows(), manifest, HELDOUT, ["id", "group", "path"], in_row_order=True)
        ranking = partial(any_of, rows_that_rank("tiny", spec, 0.5))
        found = heldout_where(source.rows(), manifest, {"": ranking}, in_row_order=True)[""]
        units = {"row": "id", "file": "path", "key": "group"}[split_by]
        by_unit: dict[Any, set[bool]] = {}
        for unit, is_ranking in zip(values[units].to_pylist(), found.tolist(), strict=True):
            by_unit.setdefault(unit, set()).add(is_ranking)
        assert all(len(sides) == 1 for sides in by_unit.values()), "none is on both sides"
        assert {side for sides in by_unit.values() for side in sides} == {True, False}
        ranks.append(dict(zip(values["id"].to_pylist(), found.tolist(), strict=True)))
    before, after = ranks
    assert len(after) > len(before) and {each: after[each] for each in before} == before
    if split_by == "row":
        assert 0.35 < sum(after.values()) / len(after) < 0.65, "half of what is held out"


@pytest.mark.process
def test_each_document_of_packed_tokens_gets_the_values_of_its_own_row(source: Source) -> None:
    for number in range(12):
        path = source.folder / "data" / ("ab"[number % 2]) / f"{number:02d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f'{{"text": "words of {number} {row} and more", "id": {100 * number + row}}}' for row in range(3)]
        path.write_text("\n".join(lines) + "\n")
    lines_of_json = SourceSpec(uri="data", format="json-lines", include=("**/*.jsonl",))
    spec = ShardSpec.model_validate(
        {
            "encoder": {"kind": "byte-pair", "vocab_size": 270, "sequence_tokens": 8},
            **{"num_groups": 3, "heldout_fraction": 0.5, "split_salt": "two"},
        }
    )
    manifest = source.shards(lines_of_json, spec, {"a/00.jsonl": [1]})
    names = sorted(doc.name for group in manifest.groups if group.split == HELDOUT for doc in documents_of(group))
    assert len(names) > 6
    found = values_of_split(source.rows(), manifest, HELDOUT, ["id", "path"], in_row_order=False)
    places = places_of_examples(manifest, HELDOUT, names)
    counted: Counter[str] = Counter()
    for name, each, path in zip(names, *(found[column].take(places).to_pylist() for column in found), strict=True):
        assert name.startswith(path) and int(path[2:4]) == each // 100
        accepted = [row for row in range(3) if (path, row) != ("a/00.jsonl", 1)]
        assert each % 100 == accepted[counted[path]], "in the order of the file"
        counted[path] += 1


def test_a_source_that_moved_on_is_refused_by_name(source: Source) -> None:
    write_tables(source.folder)
    spec = ShardSpec.model_validate(
        {
            "encoder": {"kind": "tabular", "numeric": ["x"], "label": "id", "label_kind": "number"},
            **{"split_by": "row", "heldout_fraction": 0.4},
        }
    )
    manifest = source.shards(TABLES, spec, {})
    changed = source.folder / "data" / "month=0" / "0.parquet"
    pq.write_table(pq.read_table(changed, partitioning=None).slice(1), changed)
    with pytest.raises(DataError, match=r"0\.parquet"):
        values_of_split(source.rows(), manifest, HELDOUT, ["id"], in_row_order=True)


def labels(values: Any, kind: pa.DataType | None = None, **by: Any) -> list[str]:
    return labels_of(SliceBy(column="c", **by), pa.array(values, kind))


def test_a_slice_is_a_value_or_of_many_numbers_a_quarter() -> None:
    assert labels(["b", None, "a|b"]) == ["c = b", "c = (none)", "c = a|b"]
    assert labels([1, 2, None, 1]) == ["c = 1", "c = 2", "c = (none)", "c = 1"]
    assert labels([True, False]) == ["c = True", "c = False"]
    many = labels([*range(100), None], pa.int32())
    assert Counter(many)["c = (none)"] == 1 and many[0] == "c = quarter 1: 0 to 24" and many[99].endswith("74 to 99")
    assert sorted(Counter(many).values()) == [1, 25, 25, 25, 25]
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=day) for day in range(MAX_NUMBERS + 1)]
    assert labels(days)[0] == "c = quarter 1: 2026-01-01 to 2026-01-04"
    assert labels([float("nan"), *map(float, range(MAX_NUMBERS + 1))])[0] == "c = (none)"


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("ms", "UTC")])
@pytest.mark.parametrize("num_days", [3, 2 * MAX_NUMBERS])
def test_a_moment_beyond_the_calendar_of_python_is_a_slice_as_any_other(kind: pa.DataType, num_days: int) -> None:
    days = pa.array([6_660_000, None, *range(20_000, 20_000 + num_days)], pa.int32()).cast(pa.date32())
    far, missing, first, *_ = labels_of(SliceBy(column="c"), days.cast(kind))
    assert "20204-06-18" in far and missing == "c = (none)" and "2024-10-04" in first


def test_a_day_beyond_the_calendar_of_python_is_in_a_split_as_any_other() -> None:
    days = pa.array([6_660_000, None, 20_000, -20_000], pa.int32()).cast(pa.date32())
    split = GivenSplit(column="c", heldout=("2024-10-04", "1915-03-31"))
    assert split.of_values(days, "a.parquet").tolist() == [TRAINS, TRAINS, HELD_OUT, HELD_OUT]
    assert split.without_rows([("a.parquet", days)]) == ()


def test_different_values_are_different_slices_however_they_look() -> None:
    (spelled,) = labels(["a\n"])
    alike = ["a\n", "a\\n", "a|b", "a b", "a\u202eb", "a\0b", None, "(none)", "(others)", "", " "]
    alike += ["x" * 59 + "y", "x" * 59 + "yz", "x" * 59 + "zy", spelled.removeprefix("c = ")]
    assert len(set(labels(alike))) == len(alike) and all(name.isprintable() for name in labels(alike))
    prefixes = [SliceBy(column="c = a"), SliceBy(column="c"), SliceBy(column="c/1"), SliceBy(column="c", folders=1)]
    found = [label for by in prefixes for label in labels_of(by, pa.array(["a = a/x", "a/x"]))]
    assert len(set(found)) == len(found)


def test_leading_folders_of_a_path_make_a_slice() -> None:
    paths = ["a/b/c.txt", "a/b/d/e.txt", "a/f.txt", "g.txt"]
    assert labels(paths, folders=2) == ["c/2 = a/b/", "c/2 = a/b/", "c/2 = a/", "c/2 = (top level)"]


def test_rare_values_of_a_column_are_taken_together() -> None:
    found = labels([f"v{number:03d}" for number in range(MAX_VALUES + 30)] + ["v079"])
    assert Counter(found)["c = (others)"] == 30 and "c = v079" in found and len(set(found)) == MAX_VALUES + 1


def test_a_pipeline_file_may_name_a_column_alone() -> None:
    assert SliceBy.model_validate("region") == SliceBy(column="region")
    with pytest.raises(ValidationError):
        SliceBy.model_validate({"column": "region", "width": 3})


@pytest.mark.parametrize(
    ("by", "named"),
    [
        (SliceBy(column="regoin"), "no column 'regoin'. It has: id, month, path, region, x"),
        (SliceBy(column="id", folders=1), "column 'id' is int64; slices are cut by paths"),
    ],
)
def test_a_column_that_cannot_be_cut_is_refused_before_anything_is_trained(
    source: Source, workspace: Workspace, by: SliceBy, named: str
) -> None:
    write_tables(source.folder)
    snapshot: Link = workspace.publish_document(take_snapshot(TABLES, base=source.folder, cache=source.digests))
    require_columns(workspace, [SliceBy(column="region"), SliceBy(column="path", folders=1)], snapshot)
    with pytest.raises(ConfigError, match=r"evaluation\.slices\.0") as refused:
        require_columns(workspace, [by], snapshot)
    assert named in str(refused.value)
