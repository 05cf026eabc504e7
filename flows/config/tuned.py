"""A pipeline with what `headway tune` measured in place of defaults: where hardware, versions and workload are equal.

What the pipeline file says goes before it, and no bit of a model depends on it.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import HeadwayError, IntegrityError
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.tuning import record
from headway.tasks.tuning.choice import Settings, Value
from headway.tasks.tuning.machine import machine_here
from headway.tasks.tuning.taken import INTERVAL_KEYS, RANK_KEYS
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec, can_share
from headway.training.launch.base.gang import LaunchSpec

SHOWN = 3
MAX_NAME_CHARS = 100
"""Of what a document of the workspace says of a machine."""
_SAYS_WHEN_TO_SAVE = (
    *INTERVAL_KEYS,
    # Which are kept is said for an interval: with another, those of every so many steps would not be there.
    "training.checkpoints.keep_every_steps",
    "training.checkpoints.keep_best",
)


class TunedPipeline(NamedTuple):
    pipeline: PipelineSpec
    message: str
    """What was taken, or why nothing was; empty: nothing was measured that differs from what there is."""


def is_explicit(pipeline: PipelineSpec, name: str) -> bool:
    """Whether the pipeline file says this key, dotted."""
    branch: Any = pipeline
    for part in name.split("."):
        if not isinstance(branch, BaseModel) or part not in branch.model_fields_set:
            return False
        branch = getattr(branch, part)
    return True


def says_when_to_save(pipeline: PipelineSpec) -> bool:
    return any(is_explicit(pipeline, name) for name in _SAYS_WHEN_TO_SAVE)


def why_ranks_stay(pipeline: PipelineSpec) -> str:
    """Why no other number of ranks may be tried or taken; empty: it may."""
    if all(is_explicit(pipeline, name) for name in RANK_KEYS):
        return "the pipeline file says it"
    if pipeline.training.parallel.mode != "exact" or pipeline.training.parallel.shard != 1:
        return "the number of ranks decides bits here"
    if pipeline.occupies or pipeline.launch.min_nodes is not None:
        return "the pipeline file says what its ranks occupy, or how few may go on"
    return ""


def tuned(pipeline: PipelineSpec, workspace: Workspace) -> TunedPipeline:
    launch = pipeline.launch
    if not launch.use_tuning or launch.launcher != "local":
        return TunedPipeline(pipeline, "")
    try:
        found = record.read(workspace, pipeline.pipeline)
    except IntegrityError as error:
        return TunedPipeline(pipeline, f"not taken: {record.path_of(pipeline.pipeline)} is {error.what}")
    except HeadwayError:
        found = None  # the workspace's own troubles are told where it is needed
    if found is None:
        return TunedPipeline(pipeline, "")
    # Keys of one setting belong together: half of them would be what nobody measured.
    wanted = {
        name: value
        for setting in found.settings
        if not _stays(pipeline, setting.taken)
        for name, value in setting.taken.items()
    }
    if not wanted:
        return TunedPipeline(pipeline, "")
    if found.workload != record.workload(pipeline.training, pipeline.shards.encoder):
        return TunedPipeline(pipeline, "not taken: model, batch or encoder changed since; `headway tune` measures anew")
    if differing := machine_here().differences(found.machine):
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        named = ", ".join(one_line(each, MAX_NAME_CHARS) for each in differing[:SHOWN])
        return TunedPipeline(pipeline, f"not taken: measured elsewhere: {named}{more}")
    changed = with_settings(pipeline, wanted)
    if changed is None:
        return TunedPipeline(pipeline, "not taken: this pipeline cannot have what was measured")
    when = datetime.datetime.fromtimestamp(found.measured_unix_s, datetime.UTC)
    host = one_line(found.machine.host, MAX_NAME_CHARS)
    return TunedPipeline(changed, f"{shown(wanted)}; measured {when:%Y-%m-%d %H:%M} UTC on {host}")


def _stays(pipeline: PipelineSpec, taken: Settings) -> bool:
    """Whether the pipeline file says one of these keys, or what they would go against."""
    return (
        any(is_explicit(pipeline, name) for name in taken)
        or (not taken.keys().isdisjoint(INTERVAL_KEYS) and says_when_to_save(pipeline))
        or (not taken.keys().isdisjoint(RANK_KEYS) and bool(why_ranks_stay(pipeline)))
    )


def for_run(pipeline: PipelineSpec, asked: PipelineSpec, workspace: Workspace, link: Link) -> PipelineSpec:
    """What a run that was described before is continued with: how often to save, and the rest where it does equal work.

    Another workload was never measured, may not be shared by as many ranks, and may have bits that depend on them.

    Args:
        pipeline: with what was measured of the workload of today.
        asked: as the file has it.
    """
    if pipeline is asked:
        return pipeline
    try:
        run = workspace.load(link, RunSpec)
        encoder = ShardSpec.model_validate(workspace.load(run.manifest, ShardManifest).spec).encoder
        then = record.workload(TrainingSpec.model_validate(run.config), encoder)
    except (HeadwayError, ValidationError):
        return asked  # who continues it says what is wrong with it
    if then == record.workload(asked.training, asked.shards.encoder):
        return pipeline
    checkpoints = pipeline.training.checkpoints
    return asked.model_copy(update={"training": asked.training.model_copy(update={"checkpoints": checkpoints})})


def shown(settings: Settings) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items())


def _value(value: Value) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def with_settings(pipeline: PipelineSpec, settings: Settings) -> PipelineSpec | None:
    """None: they make no pipeline that can be trained, or that comes to the same model."""
    # Of what is said alone, so that a pipeline still knows which of its keys are.
    branches = {name: getattr(pipeline, name).model_dump(exclude_unset=True) for name in ("training", "launch")}
    for name, value in settings.items():
        branch: dict[str, Any] = branches
        *parts, leaf = name.split(".")
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[leaf] = value
    try:
        training = TrainingSpec.model_validate(branches["training"])
        launch = LaunchSpec.model_validate(branches["launch"])
    except ValidationError:
        return None
    if training.identity != pipeline.training.identity or not can_share(training, launch.world_size):
        return None
    return pipeline.model_copy(update={"training": training, "launch": launch})
