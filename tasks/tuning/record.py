"""What was measured of a pipeline on one kind of machine: one document in the workspace, replaced by the next."""

from __future__ import annotations

from pydantic import Field, ValidationError

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES, parse_json
from headway.tasks.tuning.choice import FailureRecord, Measured, Settings
from headway.tasks.tuning.machine import Machine
from headway.tasks.tuning.taken import Taken
from headway.training.config.encoder_specs import EncoderSpec
from headway.training.config.training_spec import TrainingSpec

FOLDER = "tuning"
FORMAT_VERSION = 1
LAST_UNIX_S = 253402300799.0
"""The end of the year 9999, the last that a date can be shown of."""
_MOVES_NO_TIME = (
    *("max_steps", "max_epochs", "seed", "schedule", "guards", "validation", "start_from"),
    "batch_ramp",  # the largest batch is measured
)


class TunedSetting(Frozen):
    """One group of keys that are set together."""

    name: str
    measured: tuple[Measured, ...] = ()
    """The value of before first."""
    taken: Taken = Field(default_factory=dict)
    """Empty: what was there stays."""
    moved_bits: tuple[str, ...] = ()
    """Values that came to other bits than the rest, and so are out."""
    failed: tuple[str, ...] = ()
    """Values that could not be trained with, and why."""
    why: str
    """What decided, or why nothing was measured."""


class Tuning(Frozen):
    format_version: int = FORMAT_VERSION
    pipeline: str
    workload: str
    """Digest of what a step does: the model, the batch, the arithmetic and the encoder."""
    machine: Machine
    measured_unix_s: float = Field(ge=0, le=LAST_UNIX_S)
    took_s: float
    num_steps: int
    """Of each trial in each round."""
    num_rounds: int
    settings: tuple[TunedSetting, ...]
    stall_s: tuple[float, ...] = ()
    durable_s: float | None = None
    failures: FailureRecord = FailureRecord()
    tensors_sha256: str
    """Of all state after those steps, which was the same whatever the setting."""

    @property
    def was_a_choice(self) -> bool:
        return bool(self.stall_s) or any(len(each.measured) > 1 for each in self.settings)

    @property
    def taken(self) -> Settings:
        return {name: value for setting in self.settings for name, value in setting.taken.items()}


def workload(training: TrainingSpec, encoder: EncoderSpec) -> str:
    """What must be the same for step times to say anything."""
    decides = {name: value for name, value in training.identity.items() if name not in _MOVES_NO_TIME}
    return sha256_of([decides, encoder.model_dump(mode="json")])


def path_of(pipeline: str) -> str:
    return f"{FOLDER}/{pipeline}.json"


def keep(workspace: Workspace, tuning: Tuning) -> str:
    """Replaces the last one at once. Returns its place in the workspace."""
    workspace.publish_json(path_of(tuning.pipeline), tuning.model_dump(mode="json"))
    return path_of(tuning.pipeline)


def read(workspace: Workspace, pipeline: str) -> Tuning | None:
    """None: there is none.

    Raises:
        IntegrityError: there is one that cannot be used. It moves no bit, so it should stop nobody.
    """
    where = path_of(pipeline)
    try:
        data = workspace.read_if_there(where, MAX_RECORD_BYTES)
        tuning = None if data is None else Tuning.model_validate(parse_json(data))
    except (ValidationError, ValueError, OSError, IntegrityError) as error:
        raise unusable(where) from error
    if tuning is not None and (tuning.format_version, tuning.pipeline) != (FORMAT_VERSION, pipeline):
        raise unusable(where)
    return tuning


def unusable(where: str) -> IntegrityError:
    return IntegrityError(
        "no measurement that this Headway can use.", where=where, advice="`headway tune` measures anew."
    )
