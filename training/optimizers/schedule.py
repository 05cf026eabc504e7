"""Learning rates over the steps: pure functions of the step."""

from __future__ import annotations

import math

from headway.training.config.optimizer import ScheduleSpec


def lr_factor(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """What peak learning rates are multiplied by at `step`, counted from 0.

    With w warm-up steps of n: (step + 1) / w before step w, which reaches the peak at step w - 1. From step w on, with
    t = (step - w) / (n - w) and the final factor f:

    - cosine: f + (1 - f) (1 + cos(pi t)) / 2, as torch's `CosineAnnealingLR` over n - w steps.
    - linear: f + (1 - f) (1 - t), as torch's `LinearLR` over n - w steps.
    - wsd: f + (1 - f) min(1, (n - step) / d), d = decay_fraction n steps, or n - w where that is less.
    - inverse-sqrt: sqrt(max(1, w) / (step + 1)).
    - constant: 1.

    f stands at step n, right behind the last one: the last step still trains where f is 0.
    """
    if step < schedule.warmup_steps:
        # Step 0 already trains: a factor of zero would waste a step.
        return (step + 1) / schedule.warmup_steps
    match schedule.kind:
        case "constant":
            return 1.0
        case "inverse-sqrt":  # Vaswani et al., 2017, section 5.3
            return math.sqrt(max(1, schedule.warmup_steps) / (step + 1))
        case _:
            return schedule.final_factor + (1 - schedule.final_factor) * _decay(schedule, step, max_steps)


def _decay(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """From 1 to 0, over the steps behind the warm-up."""
    # At least 1: a run may be all warm-up.
    remaining_steps = max(1, max_steps - schedule.warmup_steps)
    match schedule.kind:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * (step - schedule.warmup_steps) / remaining_steps))
        case "linear":
            return (max_steps - step) / remaining_steps
        case _:
            return min(1.0, (max_steps - step) / min(schedule.decay_fraction * max_steps, remaining_steps))
