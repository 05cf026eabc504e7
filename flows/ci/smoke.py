"""A smoke retrain: the real flow, a few steps on a part of the data, in a workspace that goes with it.

The pipeline file is written anew in a folder of its own, with the user's packages beside it, as they lie beside the
original. Nothing of it reaches a registry, a workspace or a Prefect server of the team's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from flows.ci.child import Answer, headway
from flows.ci.subset import Subset, draw_subset
from flows.pipeline_spec import PipelineSpec
from training.data.spec import ShardSpec, SkewLimits

STEPS = 4
LEAST_HELDOUT_FRACTION = 0.2
"""So that a few files fall on both sides of the split."""
AGE = "freshness"
"""No change of code is at fault when data grow old."""
OF_ALL_DATA = ("rows", "volume", "drift", "balance", "statistics", "suite")
"""What a contract asks of the data as a whole, and a part of them need not hold."""
TEAMS_OWN = ("PREFECT_API_URL", "PREFECT_API_KEY", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "HEADWAY_WORKSPACE")
"""Environment variables that name places which a smoke retrain must not touch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeProject:
    """A pipeline file and a workspace in a folder that somebody removes."""

    file: Path
    workspace: Path
    steps: int
    said: str
    """What was left out, for a person."""
    details: tuple[str, ...]

    def retrain(self, hear: Callable[[Answer], object]) -> Answer:
        """Returns the summary. Raises `HeadwayError`: the retrain's own."""
        return self._headway("retrain", str(self.file), hear=hear)

    def verify(self, model_uri: str) -> Answer:
        """Returns what was proved. Raises `IntegrityError`: a link of the proof is broken."""
        return self._headway("verify", model_uri)

    def _headway(self, *arguments: str, hear: Callable[[Answer], object] | None = None) -> Answer:
        environment = {name: value for name, value in os.environ.items() if name not in TEAMS_OWN}
        workspace = ("--workspace", str(self.workspace), "--json")
        return headway(*arguments, *workspace, environment=environment, hear=hear)


def make_smoke_project(pipeline: PipelineSpec, file: Path, scratch: Path) -> SmokeProject:
    """
    Args:
        file: the pipeline's file, whose neighbours a recipe or an encoder may be.
        scratch: an existing folder; the caller removes it.

    Raises:
        ConfigError, DataError: what is wrong with the source.
    """
    folder = scratch / "project"
    folder.mkdir()
    subset = draw_subset(pipeline.source, file.parent, scratch)
    for neighbour in file.parent.iterdir():
        if neighbour.suffix == ".py" or (neighbour / "__init__.py").is_file():
            (folder / neighbour.name).symlink_to(neighbour.resolve())
    small = smaller(pipeline, subset)
    (folder / file.name).write_text(yaml.safe_dump(small.model_dump(mode="json"), sort_keys=False))
    left_out = _write_contract(file.parent / pipeline.contract, folder / small.contract, is_all=subset.is_all)
    details = [f"the contract without {', '.join(left_out)}"] if left_out else []
    if pipeline.training.start_from is not None:
        details.append("from fresh weights: the model to start from is in a registry")
    if pipeline.training.order.mix:
        details.append("without the datasets mixed in, whose shards are in a workspace")
    return SmokeProject(
        file=folder / file.name,
        workspace=scratch / "workspace",
        steps=small.training.max_steps,
        said=subset.said,
        details=tuple(details),
    )


def smaller(pipeline: PipelineSpec, subset: Subset) -> PipelineSpec:
    """The pipeline on a subset: its own model, batch, mesh and ranks, and a few steps."""
    training, order = pipeline.training, pipeline.training.order
    steps = min(STEPS, training.max_steps)
    return pipeline.model_copy(
        update={
            "source": subset.source,
            "contract": "smoke-contract.yaml",
            "shards": _sharded(pipeline.shards, subset),
            "training": training.model_copy(
                update={
                    "max_steps": steps,
                    "start_from": None,
                    "profile": None,
                    "order": order.model_copy(update={"mix": ()}),
                }
            ),
            "evaluation": pipeline.evaluation.model_copy(update={"bootstrap_resamples": 100, "xz_baseline": False}),
            "registry": pipeline.registry.model_copy(update={"tracking_uri": ""}),
            "windows": None,
        }
    )


def _sharded(shards: ShardSpec, subset: Subset) -> ShardSpec:
    if subset.is_all:
        return shards
    heldout_fraction = max(shards.heldout_fraction, LEAST_HELDOUT_FRACTION)
    return shards.model_copy(update={"heldout_fraction": heldout_fraction, "skew": SkewLimits()})


def _write_contract(contract_file: Path, where: Path, *, is_all: bool) -> list[str]:
    """Write what the contract asks of these data; returns the keys that were left out."""
    asked = yaml.safe_load(contract_file.read_text())
    left_out = [key for key in (AGE, *(() if is_all else OF_ALL_DATA)) if asked.pop(key, None)]
    if "suite" in asked:
        asked["suite"] = str((contract_file.parent / asked["suite"]).resolve())
    if not is_all:
        asked["quarantine_limit_ratio"] = 1.0  # a part may have more of such rows than the whole
    where.write_text(yaml.safe_dump(asked, sort_keys=False, allow_unicode=True))
    return left_out
