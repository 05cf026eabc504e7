"""Learning rates over the steps: pure functions of the step."""

from __future__ import annotations

import math

from training.optimizers.spec import ScheduleSpec


def lr_factor(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """What peak learning rates are multiplied by at `step`, counted from 0; `final_factor` is for `max_steps`."""
    warm = min(1.0, (step + 1) / max(1, schedule.warmup_steps))
    return warm * (schedule.final_factor + (1 - schedule.final_factor) * _course(schedule, step, max_steps))


def _course(schedule: ScheduleSpec, step: int, max_steps: int) -> float:
    """From 1, before warm-up is applied, to 0."""
    match schedule.kind:
        case "wsd":
            return min(1.0, (max_steps - step) / (schedule.decay_fraction * max_steps))
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / max_steps))
        case "linear":
            return (max_steps - step) / max_steps
        case "constant":
            return 1.0
        case "inverse-sqrt":  # Vaswani et al., 2017, section 5.3
            return min(1.0, math.sqrt(max(1, schedule.warmup_steps) / (step + 1)))
