"""The subset of a smoke retrain: small, the same each time, from all over the data."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.rehearse import project
from headway.flows.rehearse.project import Subset, draw_subset, smaller
from headway.training.config.shards import ShardSpec
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE


def scratch(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def paths(tmp_path: Path, spec: SourceSpec) -> list[str]:
    return [file.path for file in take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "digests")).files]


def test_of_many_files_the_same_few_are_taken_whatever_their_names_hold(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(project, "MAX_FILES", 5)
    for number in range(40):
        (tmp_path / "texts" / f"part[{number % 3}]").mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / f"part[{number % 3}]" / f"a*{number}?.txt").write_text(str(number))
    spec = SourceSpec(uri="texts", include=("**/*.txt",))
    first, again = (draw_subset(spec, tmp_path, scratch(tmp_path, name)) for name in ("one", "two"))
    assert first == again and (first.is_all, first.message) == (False, "5 of 40 files")
    taken = paths(Path("/"), first.source)
    assert len(taken) == 5 and len({path.partition("/")[0] for path in taken}) > 1
    (tmp_path / "texts" / "new.txt").write_text("new")
    grown = paths(Path("/"), draw_subset(spec, tmp_path, scratch(tmp_path, "three")).source)
    assert len(set(grown) & set(taken)) >= 4, "a new file moves one out at most"


def test_few_files_are_taken_whole_and_a_large_one_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text("a" * 10)
    (tmp_path / "b.txt").write_text("b" * 20)
    spec = SourceSpec(uri=".", include=("*.txt",))
    assert draw_subset(spec, tmp_path, scratch(tmp_path, "one")).is_all
    monkeypatch.setattr(project, "MAX_BYTES", 5)
    assert paths(tmp_path, draw_subset(spec, tmp_path, scratch(tmp_path, "two")).source) == ["a.txt"]


def test_a_long_table_is_thinned_out_evenly_over_its_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(project, "MAX_ROWS", 100)
    folder = scratch(tmp_path, "data")
    for number in range(3):
        ids = pa.array(range(350 * number, 350 * (number + 1)))
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet", row_group_size=64)
    drawn = draw_subset(SourceSpec(format="parquet", uri="data"), tmp_path, scratch(tmp_path, "one"))
    assert drawn.message == "3 of 3 files, 96 of 1,050 rows" and not drawn.is_all
    kept = sorted(pq.read_table(drawn.source.uri)["id"].to_pylist())
    assert kept == list(range(0, 1050, 11))


def test_no_files_are_told_as_such(tmp_path) -> None:
    with pytest.raises(DataError, match="the source is empty"):
        draw_subset(SourceSpec(uri="."), scratch(tmp_path, "empty"), scratch(tmp_path, "one"))


@pytest.mark.parametrize(
    ("given", "kept_together"), [({"column": "part", "heldout": ["test"]}, "row"), ({"heldout": ["2026/**"]}, "file")]
)
def test_a_part_of_the_data_is_split_by_hash_since_it_may_have_nothing_of_a_given_split(given, kept_together) -> None:
    shards = ShardSpec.model_validate({"split": given})
    source = SourceSpec(uri=".", include=("*.csv",))
    small = project._sharded(shards, Subset(source=source, share=0.5, message=""))
    assert (small.split, small.split_by) == (None, kept_together)
    assert ShardSpec.model_validate(small.model_dump(mode="json")) == small
    assert project._sharded(shards, Subset(source=source, share=1, message="")) == shards


def test_neither_windows_nor_a_bound_on_the_cost_keep_a_rehearsal_from_its_end(tmp_path: Path) -> None:
    """Its workspace is its own, so that nothing was spent there, and what it takes is no retrain's."""
    bound = "cost_bound: {usd_per_run: 0.01}\nwindows: {time_zone: UTC, open: [{start: '01:00', end: '02:00'}]}\n"
    (tmp_path / "tiny.yaml").write_text(PIPELINE + bound)
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    pipeline = load_pipeline(tmp_path / "tiny.yaml")
    assert pipeline.cost_bound is not None and pipeline.windows is not None
    (tmp_path / "a.txt").write_text("a")
    subset = draw_subset(SourceSpec(uri=".", include=("*.txt",)), tmp_path, scratch(tmp_path, "one"))
    small = smaller(pipeline, subset)
    assert small.cost_bound is None and small.windows is None
