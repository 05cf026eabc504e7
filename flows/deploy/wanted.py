"""What the desired state of a server is made from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from headway.data_contracts.store.documents import Json
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import DeploymentProfile
from headway.flows.deploy.resources import mark_of

RETRAIN = "retrain"
TRIALS = "trials"
MOVE_CHAMPION = "move-champion"
HOUSEKEEPING = "housekeeping"
WATCH = "watch"


@dataclass(frozen=True, kw_only=True, slots=True)
class DesiredState:
    """What the desired state is made from."""

    project: str
    profile_name: str
    profile: DeploymentProfile
    pipelines: Mapping[str, PipelineSpec]
    """By the name that a request gives: the file's."""
    project_folder: str
    forms: Mapping[str, Json]
    """Flow name to the JSON schema of its parameters."""
    now: datetime.datetime
    notify_block_id: str | None = None

    @property
    def mark(self) -> str:
        return mark_of(self.project, self.profile_name)

    @property
    def unwatched(self) -> str:
        """The tag of deployments that no watch looks after: where a start of theirs is lost, a person has to know."""
        return f"{self.mark}:unwatched"
