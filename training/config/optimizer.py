"""How weights are moved: update rule, groups of parameters, and learning rates over the steps. Costs no torch."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen

Rule = Literal["muon", "adamw", "sgd"]


class ParameterGroupSpec(Frozen):
    """What is done otherwise with the parameters whose names match; the first group that matches a name has it."""

    parameters: tuple[str, ...] = Field(
        min_length=1, description="Patterns of names, such as `blocks.0.*` or `*.bias`; each must match one at least."
    )
    rule: Rule | None = Field(default=None, description="Update rule; empty: as `kind` says. Muon takes matrices.")
    lr_multiplier: float = Field(default=1.0, gt=0, description="What the rule's learning rate is multiplied by.")
    weight_decay: float | None = Field(default=None, ge=0, description="In place of the optimizer's; empty: as usual.")
    frozen: bool = Field(default=False, description="Keep them as they are: no gradient, no optimizer state.")

    @model_validator(mode="after")
    def _frozen_parameters_have_no_rule(self) -> Self:
        if self.frozen and (self.rule, self.lr_multiplier, self.weight_decay) != (None, 1.0, None):
            raise ValueError("what is frozen has no rule, learning rate or weight decay")
        return self

    def __str__(self) -> str:
        """For a person."""
        message = [
            "frozen" if self.frozen else "",
            self.rule or "",
            f"lr x {self.lr_multiplier:g}" if self.lr_multiplier != 1 else "",
            "" if self.weight_decay is None else f"decay {self.weight_decay:g}",
        ]
        return f"{' '.join(self.parameters)}: {', '.join(filter(None, message)) or 'as usual'}"


class OptimizerSpec(Frozen):
    kind: Rule = Field(
        default="muon",
        description="`muon`: for hidden matrices, and AdamW for the rest. `adamw`, `sgd`: for all parameters.",
    )
    implementation: Literal["fused", "foreach"] = Field(
        default="fused",
        description="`fused`: one kernel for a whole update, on CPU and CUDA. `foreach`: one for each of its "
        "operations, on any device. Their bits differ.",
    )
    matrix_lr: float = Field(default=0.02, gt=0, description="Muon's peak learning rate, for hidden matrices.")
    matrix_momentum: float = Field(default=0.95, ge=0, lt=1, description="Muon's momentum.")
    lr: float = Field(default=0.02, gt=0, description="Peak learning rate of AdamW or SGD.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient.")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW's decay of the mean squared gradient.")
    epsilon: float = Field(default=1e-8, gt=0, description="AdamW's epsilon.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="SGD's momentum; 0: none, and no state.")
    nesterov: bool = Field(default=False, description="Nesterov's momentum, for SGD.")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="Decay of matrices and larger weights; biases, norms and embeddings have none unless a group says "
        "so. Decoupled in AdamW and Muon, part of the gradient in SGD.",
    )
    gradient_clip: float = Field(default=1.0, gt=0, description="Largest norm of the whole gradient.")
    groups: tuple[ParameterGroupSpec, ...] = Field(
        default=(), description="Parameters to be treated otherwise, before what the recipe says of them."
    )
    scale_with_batch: Literal["none", "linear", "sqrt"] = Field(
        default="none",
        description="How learning rates grow with global batch / `reference_batch`; with `batch_ramp` by the batch "
        "of each step.",
    )
    reference_batch: int | None = Field(
        default=None, gt=0, description="Rows of the global batch that the learning rates were chosen for."
    )

    @model_validator(mode="after")
    def _scaling_has_a_reference(self) -> Self:
        if (self.scale_with_batch == "none") != (self.reference_batch is None):
            raise ValueError("scale_with_batch: linear or sqrt and reference_batch go together")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum")
        return self

    def lr_scale(self, global_batch: int) -> float:
        """What learning rates are multiplied by for a global batch of so many rows (Goyal et al., 2017, section 2.1;
        by the square root: Krizhevsky, 2014, section 5)."""
        if self.reference_batch is None:
            return 1.0
        ratio = global_batch / self.reference_batch
        return math.sqrt(ratio) if self.scale_with_batch == "sqrt" else ratio


class ScheduleSpec(Frozen):
    kind: Literal["wsd", "cosine", "linear", "constant", "inverse-sqrt"] = Field(
        default="wsd",
        description="After warm-up, which ends at the peak: `wsd`: stay, then decay in a straight line. `cosine`: half "
        "a cosine over all remaining steps. `linear`: a straight line over them. `constant`: stay. `inverse-sqrt`: "
        "sqrt(warmup_steps / step).",
    )
    warmup_steps: int = Field(
        default=30, ge=0, description="Steps of linear warm-up: step / warmup_steps, counted from 1, of the peak."
    )
    decay_fraction: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="Part of all steps that `wsd` decays over, the last ones; at most those behind the warm-up.",
    )
    final_factor: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Part of the peak that `wsd`, `cosine` and `linear` come to right behind the last step, which "
        "itself still trains where this is 0.",
    )


class EmaSpec(Frozen):
    """An exponential moving average of the weights, corrected for its bias."""

    decay: float = Field(
        default=0.999,
        gt=0,
        lt=1,
        description="What the average keeps of itself at each step; it looks back about 1 / (1 - decay) steps.",
    )

    def __str__(self) -> str:
        """For a person."""
        return f"an average of the weights is the model, decay {self.decay:g}: about {1 / (1 - self.decay):,.0f} steps"


def learning_rate_line(
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
    *,
    global_batch: int,
    max_steps: int,
    has_matrices: bool = True,
    grows: bool = False,
) -> str:
    """Peak learning rates, their scaling and their course in one line, for a person.

    Args:
        has_matrices: whether the recipe may name hidden matrices; without any Muon trains nothing.
        grows: whether the batch comes to that size over the run.
    """
    scale = optimizer.lr_scale(global_batch)
    rates = {"matrices (muon)": optimizer.matrix_lr, "others (adamw)": optimizer.lr}
    if optimizer.kind != "muon":
        rates = {optimizer.kind: optimizer.lr}
    elif not has_matrices:
        rates = {"all (adamw)": optimizer.lr}
    ratio = f"{global_batch} / {optimizer.reference_batch} rows"
    factor = {"none": "", "linear": f" x {ratio}", "sqrt": f" x sqrt({ratio})"}[optimizer.scale_with_batch]
    peaks = ", ".join(
        f"{name} {lr:g}{factor}" + (f" = {lr * scale:.3g}" if factor else "") for name, lr in rates.items()
    )
    short = f" (the peak is not reached in {max_steps} steps)" if schedule.warmup_steps > max_steps else ""
    course = ""
    if grows:
        course = " at the largest batch, and scaled alike to smaller ones" if factor else ", whatever the batch"
    return f"{peaks}{course}; warm-up {schedule.warmup_steps} steps{short}, {schedule.kind}"
