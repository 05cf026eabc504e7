"""What a pipeline file asks of a model before it becomes champion."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.evaluation.measures import GREATER_IS_BETTER


class SliceLimits(Frozen):
    may_lose: float = Field(
        0.0, ge=0, description="By how much the decisive figure of a slice may get worse, in its own unit."
    )
    min_examples: int = Field(20, ge=1, description="Smaller slices are not evaluated: their intervals are too wide.")


class Shadow(Frozen):
    """A part of the examples on which a challenger has to stand beside the champion by itself."""

    slice: str = Field(
        min_length=1, description="As the report names it, such as `region = north`; see `evaluation.slices`."
    )
    margin: float = Field(
        0.0,
        description="The whole interval of the difference on it must be better by more than this; below 0, it may be "
        "worse by so much.",
    )
    min_examples: int = Field(20, ge=1, description="With fewer nothing can be said, and nothing is promoted.")


class PromotionSpec(Frozen):
    floors: dict[str, float] = Field(
        default_factory=dict,
        description="By figure, such as `accuracy: 0.9`: the whole interval must be at least as good.",
    )
    margin: float = Field(
        0.0,
        ge=0,
        description="The whole interval of the difference to the champion must be better by more than this, in the "
        "decisive figure's unit.",
    )
    slices: SliceLimits | None = Field(
        default_factory=SliceLimits,
        description="No slice may get worse than the champion beyond doubt; null switches the check off.",
    )
    shadow: Shadow | None = Field(
        None,
        exclude_if=lambda shadow: shadow is None,
        description="A part of the examples on which the champion must be beaten as well, such as the newest month.",
    )
    max_model_bytes: int | None = Field(None, gt=0, description="Size of the registered graph.")
    max_latency_ms: float | None = Field(
        None,
        gt=0,
        description="95th percentile of one call on the input example, on one CPU thread of this machine; "
        "timed once on each kind of processor, and anew by `headway promote`.",
    )
    max_data_age_s: float | None = Field(
        None,
        gt=0,
        description="Age of the newest row by the contract's freshness rules; the oldest of several decides.",
    )
    approval: Literal["none", "required"] = Field(
        "none",
        exclude_if=lambda approval: approval == "none",
        description="`required`: a version that passes everything else waits for a person, who says `headway promote` "
        "or `headway refuse`.",
    )
    budget: Literal["ignore", "freeze"] = Field(
        "ignore",
        exclude_if=lambda budget: budget == "ignore",
        description="`freeze`: while more retrains of its job class failed within 30 days than its objective allows, "
        "no retrain promotes. A person still may.",
    )
    label_leak: Literal["refuse", "allow"] = Field(
        "refuse",
        exclude_if=lambda label_leak: label_leak == "refuse",
        description="`allow`: a model may be promoted though one input column alone tells the label, which is right "
        "only where that column is known when the model is asked.",
    )
    signature: bool = Field(True, description="The registered model must say what goes in and comes out.")
    input_example: bool = Field(True, description="The registered model must come with an example of what goes in.")

    @field_validator("floors")
    @classmethod
    def _are_figures(cls, floors: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(floors) - set(GREATER_IS_BETTER)):
            raise ValueError(f"no such figure: {', '.join(unknown)}; there are {', '.join(sorted(GREATER_IS_BETTER))}")
        return floors
