"""What a deployment consists of, as plain data: the same shape for what should be on a server and what is.

`DesiredState` is what the former is made from.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from headway.data_contracts.store.documents import Frozen, Json
from headway.flows.accounts.objectives import Severity
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import DeploymentProfile

Kind = Literal["work pool", "concurrency limit", "variable", "deployment", "automation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which they are made; removed the other way round."""


class Resource(Frozen):
    kind: Kind
    name: str
    """Unique among its kind; a deployment's is FLOW/NAME."""
    fields: dict[str, Json]
    """As Prefect's API has them; all that `headway deploy` decides, and nothing else."""


class ExistingResource(Resource):
    """One that is on the server."""

    id: str
    ours: bool
    """It carries the mark of this project and profile."""
    used_by_others: tuple[str, ...] = ()
    """Deployments without the mark that stand on it."""


def mark_of(project: str, profile: str) -> str:
    """A tag on all that is made, or part of the name or description of what takes no tags."""
    return f"headway:{project}:{profile}"


RETRAIN = "retrain"
TRIALS = "trials"
MOVE_CHAMPION = "move-champion"
HOUSEKEEPING = "housekeeping"
REPORT = "report"
GAME_DAY = "game-day"
PROBE = "probe"
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
    block_ids: Mapping[Severity, str] = field(default_factory=dict)
    """The server's notification block for each severity; empty: nobody is told."""

    @property
    def mark(self) -> str:
        return mark_of(self.project, self.profile_name)

    @property
    def unwatched(self) -> str:
        """The tag of deployments that no watch looks after: where a start of theirs is lost, a person has to know."""
        return f"{self.mark}:unwatched"
