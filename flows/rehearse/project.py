"""A pipeline made small: its own model, batch, mesh and ranks, for a few steps on a part of the data.

The part is the same one for the same files, whoever draws it.

The pipeline file is written anew in a folder of its own, with the user's packages beside it, as they lie beside the
original. Nothing of it names a registry or a workspace of the team's.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from headway.data_contracts.sources.locations import resolve_base_uri
from headway.data_contracts.sources.reading import read_rows, take_snapshot, unparsable_rows
from headway.data_contracts.sources.stores import ListedFile, open_store
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.places import real
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.types.report_text import count
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.training.config.shards import ShardSpec, SkewLimits

STEPS = 4
MIN_HELDOUT_FRACTION = 0.2
"""So that a few files fall on both sides of the split."""
AGE = "freshness"
"""No change of code is at fault when data grow old."""
OF_ALL_DATA = ("rows", "volume", "drift", "balance", "statistics", "suite")
"""What a contract asks of the data as a whole, and a part of them need not hold."""
TEAMS_OWN = (
    *("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI"),
    *("MLFLOW_REGISTRY_URI", "HEADWAY_WORKSPACE", "HEADWAY_LIMITS", "HEADWAY_PUSHGATEWAY"),
)
"""Environment variables that name places which a small retrain must not touch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallProject:
    """A pipeline file in a folder that somebody removes."""

    file: Path
    steps: int
    subset: Subset
    excluded: tuple[str, ...]
    """For a person."""


def make_small_project(pipeline: PipelineSpec, file: Path, scratch: Path, *, steps: int = STEPS) -> SmallProject:
    """
    Args:
        file: the pipeline's file, whose neighbours a recipe or an encoder may be.
        scratch: an existing folder; the caller removes it.
        steps: of training; fewer where the pipeline has fewer.

    Raises:
        ConfigError, DataError: what is wrong with the source.
    """
    folder = scratch / "project"
    folder.mkdir()
    contract = read_contract_file(file.parent / pipeline.contract).contract
    subset = draw_subset(pipeline.source, file.parent, scratch, contract.texts, contract.quarantined_types)
    for neighbour in file.parent.iterdir():
        if neighbour.suffix == ".py" or (neighbour / "__init__.py").is_file():
            # Links, not copies: packages may be large, and are only read.
            (folder / neighbour.name).symlink_to(real(neighbour))
    small = smaller(pipeline, subset, steps)
    (folder / file.name).write_text(yaml.safe_dump(small.model_dump(mode="json"), sort_keys=False))
    dropped = _write_contract(file.parent / pipeline.contract, folder / small.contract, is_all=subset.is_all)
    excluded = [f"the contract without {', '.join(dropped)}"] if dropped else []
    if pipeline.shards.split is not None and not subset.is_all:
        excluded.append("split by hash: a part of the data may have nothing of what the given split holds out")
    if pipeline.training.start_from is not None:
        excluded.append("from fresh weights: the model to start from is in a registry")
    if pipeline.training.order.mix:
        excluded.append("without the datasets mixed in, whose shards are in a workspace")
    if pipeline.training.federated is not None and not subset.is_all:
        excluded.append("islands without clients: a part of the data may have fewer than a round draws")
    if pipeline.training.batch_ramp is not None:
        excluded.append("at the largest batch throughout: smaller ones take less time and memory")
    return SmallProject(
        file=folder / file.name, steps=small.training.max_steps, subset=subset, excluded=tuple(excluded)
    )


def smaller(pipeline: PipelineSpec, subset: Subset, steps: int = STEPS) -> PipelineSpec:
    """The pipeline on a subset: its own model, batch, mesh and ranks, and a few steps."""
    training, order = pipeline.training, pipeline.training.order
    sync, validation = training.sync, training.validation if subset.is_all else None
    if sync is not None and not subset.is_all:
        # A part of the data may have fewer clients than a round draws.
        sync = sync.model_copy(update={"federated": None})
    if validation is not None and training.federated is not None:
        # Clients are validated between rounds, and so few steps are one.
        validation = validation.model_copy(update={"at_fractions": (), "every_steps": steps})
    return pipeline.model_copy(
        update={
            "source": subset.source,
            "contract": "small-contract.yaml",
            "shards": _sharded(pipeline.shards, subset),
            "training": training.model_copy(
                update={
                    "max_steps": steps if training.max_epochs else min(steps, training.max_steps),
                    "max_epochs": None,
                    "start_from": None,
                    "validation": validation,
                    "sync": sync,
                    "profile": None,
                    # The largest batch is the one that memory and time are to do for.
                    "batch_ramp": None,
                    "order": order.model_copy(update={"mix": ()}),
                }
            ),
            "evaluation": pipeline.evaluation.model_copy(
                # Of a part of the data all that is held out judges: half of it may be nothing.
                update={
                    "bootstrap_resamples": 100,
                    "xz_baseline": False,
                    "trees_baseline": False,
                    "ranking_share": 0.0,
                    "folds": None,
                }
            ),
            "trials": None,
            "registry": pipeline.registry.model_copy(update={"tracking_uri": ""}),
            "windows": None,
            # Nothing was spent in its own workspace, and what it takes is no retrain's.
            "cost_bound": None,
        }
    )


def _sharded(shards: ShardSpec, subset: Subset) -> ShardSpec:
    if subset.is_all:
        return shards
    heldout_fraction = max(shards.heldout_fraction, MIN_HELDOUT_FRACTION)
    # Of a part of the data nothing may be left that validates.
    update: dict[str, Any] = {"heldout_fraction": heldout_fraction, "validation_fraction": 0.0, "skew": SkewLimits()}
    if shards.split is not None:  # a part of the data may have nothing of what it holds out
        update |= {"split": None, "split_by": "file" if shards.split.column is None else "row"}
    return shards.model_copy(update=update)


def _write_contract(contract_file: Path, where: Path, *, is_all: bool) -> list[str]:
    """Write what the contract asks of these data; returns the keys that were left out."""
    contract = yaml.safe_load(contract_file.read_text())
    excluded = [key for key in (AGE, *(() if is_all else OF_ALL_DATA)) if contract.pop(key, None)]
    if "suite" in contract:
        # Its path is relative to the contract, which is written elsewhere here.
        contract["suite"] = str(real(contract_file.parent / contract["suite"]))
    if not is_all:
        contract["quarantine_limit_ratio"] = 1.0  # a part may have more of such rows than the whole
    where.write_text(yaml.safe_dump(contract, sort_keys=False, allow_unicode=True))
    return excluded


MAX_FILES = 64
MAX_BYTES = 32 << 20
"""Of all files together; a larger one is taken alone."""
MAX_ROWS = 4096
"""Of tables; more are thinned out evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subset:
    source: SourceSpec
    """Reads the part from wherever it is asked."""
    share: float
    """Of the source, by bytes of its files and rows of its tables; above 0, and 1 where it is all."""
    message: str

    @property
    def is_all(self) -> bool:
        return self.share == 1


def draw_subset(
    spec: SourceSpec,
    base: Path,
    scratch: Path,
    texts: Collection[str] = (),
    quarantined: Mapping[str, str] | None = None,
) -> Subset:
    """Some files, first by the digest of their paths, and of long tables every so manieth row.

    Args:
        base: the folder relative paths start from.
        scratch: an existing folder; what is written there must outlive the subset.
        texts, quarantined: as for `take_snapshot`; of long tables, rows that cannot be read are left out.

    Raises:
        ConfigError, DataError: what is wrong with the source.
    """
    root, cache = resolve_base_uri(spec, base=base), DigestCache(scratch / "digests")
    listed = open_store(spec, root, cache, FileCache.beside(cache)).list_files()
    if not listed:
        raise DataError(
            "the source is empty: no file matches.",
            where=root,
            advice="Check `source.uri`, `source.include` and `source.exclude`.",
        )
    chosen = _chosen(listed)
    names = {"include": tuple(glob.escape(file.path) for file in chosen), "exclude": ()}
    found = spec.model_copy(update={"uri": root, **({} if len(chosen) == len(listed) else names)})
    share = 1.0 if len(chosen) == len(listed) else _share_of_bytes(chosen, listed)
    message = f"{len(chosen)} of {count(len(listed), 'file')}"
    if spec.is_table:
        snapshot = take_snapshot(found, base=base, cache=cache, texts=texts, quarantined=quarantined)
        if (every := -(-snapshot.num_rows // MAX_ROWS)) > 1:
            folder = scratch / "rows"
            folder.mkdir()
            num_rows = _thin_out(found, snapshot, base, cache, every, folder)
            message += f", {num_rows:,} of {count(snapshot.num_rows, 'row')}"
            thinned = SourceSpec(format="parquet", uri=str(folder), include=("*.parquet",))
            return Subset(source=thinned, share=share / every, message=message)
        message += f", {count(snapshot.num_rows, 'row')}"
    return Subset(source=found, share=share, message=message)


def _chosen(listed: list[ListedFile]) -> list[ListedFile]:
    chosen: list[ListedFile] = []
    left_bytes = MAX_BYTES
    for file in sorted(listed, key=lambda file: sha256_bytes(file.path.encode(errors="surrogateescape"))):
        if len(chosen) < MAX_FILES and file.size_bytes <= left_bytes:
            chosen.append(file)
            left_bytes -= file.size_bytes
    return chosen or [min(listed, key=lambda file: (file.size_bytes, file.path))]


def _share_of_bytes(chosen: list[ListedFile], listed: list[ListedFile]) -> float:
    """Below 1, since some are left out, though they may be empty."""
    part, whole = (1 + sum(file.size_bytes for file in files) for files in (chosen, listed))
    return min(part / whole, 1 - 1 / (1 + whole))


def _thin_out(spec: SourceSpec, snapshot: Snapshot, base: Path, cache: DigestCache, every: int, folder: Path) -> int:
    """Write every so manieth row of each file; returns how many."""
    written, seen = 0, 0
    for file in snapshot.files:
        kept, first = [], seen
        for batch in read_rows(spec, file, base=base, columns=snapshot.columns, digests=cache):
            bad = {first + row for row in unparsable_rows(spec, file, columns=snapshot.columns, digests=cache)}
            if places := [place for place in range(-seen % every, batch.num_rows, every) if seen + place not in bad]:
                kept.append(batch.take(pa.array(places)))
            seen += batch.num_rows
        if kept:
            table = pa.Table.from_batches(kept)
            pq.write_table(table, folder / f"{sha256_bytes(file.path.encode())[:16]}.parquet")
            written += table.num_rows
    return written
