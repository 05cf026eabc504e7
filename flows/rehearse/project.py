"""A pipeline made small: its own model, batch, mesh and ranks, for a few steps on a part of the data.

The pipeline file is written anew in a folder of its own, with the user's packages beside it, as they lie beside the
original. Nothing of it names a registry or a workspace of the team's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headway.data_contracts.rules.contract import load_contract
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.rehearse.subset import Subset, draw_subset
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
    *("MLFLOW_REGISTRY_URI", "HEADWAY_WORKSPACE", "HEADWAY_LIMITS"),
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
    contract = load_contract(file.parent / pipeline.contract)
    subset = draw_subset(pipeline.source, file.parent, scratch, contract.texts, contract.quarantined_types)
    for neighbour in file.parent.iterdir():
        if neighbour.suffix == ".py" or (neighbour / "__init__.py").is_file():
            (folder / neighbour.name).symlink_to(neighbour.resolve())
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
    return SmallProject(
        file=folder / file.name, steps=small.training.max_steps, subset=subset, excluded=tuple(excluded)
    )


def smaller(pipeline: PipelineSpec, subset: Subset, steps: int = STEPS) -> PipelineSpec:
    """The pipeline on a subset: its own model, batch, mesh and ranks, and a few steps."""
    training, order = pipeline.training, pipeline.training.order
    return pipeline.model_copy(
        update={
            "source": subset.source,
            "contract": "small-contract.yaml",
            "shards": _sharded(pipeline.shards, subset),
            "training": training.model_copy(
                update={
                    "max_steps": min(steps, training.max_steps),
                    "start_from": None,
                    "profile": None,
                    "order": order.model_copy(update={"mix": ()}),
                }
            ),
            "evaluation": pipeline.evaluation.model_copy(
                # Of a part of the data all that is held out judges: half of it may be nothing.
                update={"bootstrap_resamples": 100, "xz_baseline": False, "ranking_share": 0.0}
            ),
            "trials": None,
            "registry": pipeline.registry.model_copy(update={"tracking_uri": ""}),
            "windows": None,
        }
    )


def _sharded(shards: ShardSpec, subset: Subset) -> ShardSpec:
    if subset.is_all:
        return shards
    heldout_fraction = max(shards.heldout_fraction, MIN_HELDOUT_FRACTION)
    update: dict[str, Any] = {"heldout_fraction": heldout_fraction, "skew": SkewLimits()}
    if shards.split is not None:  # a part of the data may have nothing of what it holds out
        update |= {"split": None, "split_by": "file" if shards.split.column is None else "row"}
    return shards.model_copy(update=update)


def _write_contract(contract_file: Path, where: Path, *, is_all: bool) -> list[str]:
    """Write what the contract asks of these data; returns the keys that were left out."""
    contract = yaml.safe_load(contract_file.read_text())
    excluded = [key for key in (AGE, *(() if is_all else OF_ALL_DATA)) if contract.pop(key, None)]
    if "suite" in contract:
        contract["suite"] = str((contract_file.parent / contract["suite"]).resolve())
    if not is_all:
        contract["quarantine_limit_ratio"] = 1.0  # a part may have more of such rows than the whole
    where.write_text(yaml.safe_dump(contract, sort_keys=False, allow_unicode=True))
    return excluded
