"""A pipeline with what `headway tune` measured in place of defaults: where hardware, versions and workload are equal.

What the pipeline file says goes before it, and no bit of a model depends on it.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.tuning import record
from headway.tasks.tuning.choice import Settings, Value
from headway.tasks.tuning.machine import machine_here
from headway.training.config.training_spec import TrainingSpec, can_share
from headway.training.launch.base.gang import LaunchSpec

SHOWN = 3
Model = TypeVar("Model", bound=BaseModel)


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


def tuned(pipeline: PipelineSpec, workspace: Workspace) -> TunedPipeline:
    launch = pipeline.launch
    if not launch.use_tuning or launch.launcher != "local":
        return TunedPipeline(pipeline, "")
    try:
        found = record.read(workspace, pipeline.pipeline)
    except HeadwayError:
        found = None  # the workspace's own troubles are told where it is needed
    if found is None:
        return TunedPipeline(pipeline, "")
    wanted = {
        name: value
        for setting in found.settings
        # Keys of one setting belong together: half of them would be what nobody measured.
        if not any(is_explicit(pipeline, each) for each in setting.taken)
        for name, value in setting.taken.items()
    }
    if not wanted:
        return TunedPipeline(pipeline, "")
    if found.workload != record.workload(pipeline.training, pipeline.shards.encoder):
        return TunedPipeline(pipeline, "not taken: model, batch or encoder changed since; `headway tune` measures anew")
    if differing := machine_here().differences(found.machine):
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        return TunedPipeline(pipeline, f"not taken: measured elsewhere: {', '.join(differing[:SHOWN])}{more}")
    changed = with_settings(pipeline, wanted)
    if changed is None:
        return TunedPipeline(pipeline, "not taken: this pipeline cannot have what was measured")
    when = datetime.datetime.fromtimestamp(found.measured_unix_s, datetime.UTC)
    return TunedPipeline(changed, f"{shown(wanted)}; measured {when:%Y-%m-%d %H:%M} UTC on {found.machine.host}")


def shown(settings: Settings) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in settings.items())


def _value(value: Value) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def with_settings(pipeline: PipelineSpec, settings: Settings) -> PipelineSpec | None:
    """None: they make no pipeline that can be trained."""
    for name, value in settings.items():
        pipeline = _with(pipeline, name.split("."), value)
    try:
        TrainingSpec.model_validate(pipeline.training.model_dump())
        LaunchSpec.model_validate(pipeline.launch.model_dump())
    except ValidationError:
        return None
    return pipeline if can_share(pipeline.training, pipeline.launch.world_size) else None


def _with(model: Model, parts: list[str], value: object) -> Model:
    first, *rest = parts
    inner = _with(getattr(model, first), rest, value) if rest else value
    return model.model_copy(update={first: inner})
