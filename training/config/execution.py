"""What of `training` decides no bit: when checkpoints are kept, what is profiled, how gradients are cut to travel.

None of it is in a run's key. Ranks are told by their launch, so an attempt goes by what the pipeline file says now,
whatever it said when the run was started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

from headway.data_contracts.store.documents import Frozen
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.training_spec import DEFAULT_BUCKET_BYTES, ProfileSpec, TrainingSpec

ENVIRONMENT_KEY = "HEADWAY_EXECUTION"


class ExecutionSpec(Frozen):
    checkpoints: CheckpointSpec
    profile: ProfileSpec | None
    bucket_bytes: int = DEFAULT_BUCKET_BYTES

    @classmethod
    def of(cls, training: TrainingSpec) -> Self:
        return cls(checkpoints=training.checkpoints, profile=training.profile, bucket_bytes=training.bucket_bytes)

    def environment(self) -> dict[str, str]:
        """How a launch tells its ranks, whose arguments name the run alone."""
        # Ranks run the code that the run froze, which may not know a key that came later: only what is said goes.
        return {ENVIRONMENT_KEY: self.model_dump_json(exclude_defaults=True)}

    def applied(self, training: TrainingSpec) -> TrainingSpec:
        return training.model_copy(update=dict(self))


def as_launched(training: TrainingSpec, environ: Mapping[str, str] = os.environ) -> TrainingSpec:
    """A run's configuration with what its launch said; without a word of it, as the run's document has it."""
    given = environ.get(ENVIRONMENT_KEY)
    return training if given is None else ExecutionSpec.model_validate_json(given).applied(training)
