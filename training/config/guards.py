"""When a training step is not taken, and what is done instead: the `guards` branch of the training configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headway.data_contracts.store.documents import Frozen


class NonFinitePolicy(Frozen):
    action: Literal["stop", "skip", "roll_back"] = Field(
        default="stop",
        description="What a loss or gradient that is not finite means. `stop` ends the run; `skip` takes the step on "
        "the next batch; `roll_back` leaves out the newest `rewind_steps` batches and goes back to before them.",
    )
    budget: int = Field(default=3, ge=1, description="How often in a run; after that it stops all the same.")


class SpikePolicy(Frozen):
    action: Literal["note", "stop", "skip", "roll_back"] = Field(
        default="note", description="What a loss far above the recent ones means; `note` only writes it down."
    )
    budget: int = Field(default=3, ge=1, description="How often in a run; after that it stops all the same.")
    window_steps: int = Field(default=64, ge=8, description="Recent steps that a loss is compared with.")
    threshold: float = Field(
        default=8.0,
        gt=0,
        description="Robust standard deviations above their median that make a spike, if it is also twice as far above "
        "it as any loss was of late (halved every 8 windows).",
    )


class GuardSpec(Frozen):
    non_finite: NonFinitePolicy = Field(NonFinitePolicy(), description="A loss or gradient that is not finite.")
    spike: SpikePolicy = Field(SpikePolicy(), description="A loss or gradient norm far above the recent ones.")
    rewind_steps: int = Field(
        default=32, ge=1, description="Batches that `roll_back` leaves out, the one that gave alarm the last of them."
    )
