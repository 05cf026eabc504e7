"""What the ranks of `headway.training.programs.tuning` are asked, and what they answer."""

from __future__ import annotations

from headway.data_contracts.store.documents import Frozen
from headway.training.config.loader_spec import LoaderSpec

MODULE = "headway.training.programs.tuning"
REQUEST_NAME, ANSWER_NAME = "tuning-request.json", "tuning-answer.json"


class TuningTrial(Frozen):
    bucket_bytes: int
    loader: LoaderSpec
    micro_batch_sequences: int | None = None
    """None: the run's own."""
    compile: bool = False
    """Whether to compile a model that the run does not."""


class TuningRequest(Frozen):
    trials: tuple[TuningTrial, ...]
    rounds: int
    trial_s: float = 0.5
    """How long the counted steps of a trial take together, about."""
    num_steps: int | None = None
    """Counted steps of each trial; None: as many as `trial_s` has room for."""
    num_saves: int = 0
    """Checkpoints to save and measure, by the first trial's settings."""
    lr_factors: tuple[float, ...] = ()
    """Of a learning-rate range test: what the learning rate is multiplied by, step after step."""


class TrialTimes(Frozen):
    step_s: tuple[float, ...]
    """Median of each round."""
    data_s: tuple[float, ...]
    """How much of it the step waited for its batch."""
    warm_s: tuple[float, ...]
    """Of each round: the steps before those that count, in which a model is compiled."""
    tensors_sha256: str
    """Of all state after its steps."""
    losses_sha256: str
    """Of the losses of all its steps."""


class TuningAnswer(Frozen):
    num_steps: int
    device: str
    num_parameters: int
    open_s: float
    """Until rank 0 had opened the shards: fetched, decoded and verified."""
    cached_bytes: int
    """Of shards that it maps out of the node's cache."""
    trials: tuple[TrialTimes, ...]
    stall_s: tuple[float, ...] = ()
    """Of each save: what steps lost to it."""
    durable_s: tuple[float, ...] = ()
    """Of each save: until it was safe."""
    losses: tuple[float, ...] = ()
    """Of each step of the range test, up to the first that was not finite."""
    peak_bytes: int = 0
    """Memory of rank 0 at most: of its device, or of its process where it has none."""
