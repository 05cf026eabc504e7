"""A rank that measures the gradient noise scale in every step, and may be signalled in the midst of one: as the worker.

`CUT` is `RANK STEP SIGNAL`: this rank sends itself that signal in that step, counted from 1, before its backward pass.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from headway.training.engine.learner import Learner
from headway.training.parallel import gradients
from headway.training.programs.worker import main

RANK, STEP, SIGNAL = map(int, os.environ.get("CUT", "-1 0 0").split())
real_backward = Learner.backward


def backward(self: Learner, step: int, micro_batches: Sequence[Any], num_replicas: int) -> Tensor:
    if (int(os.environ["RANK"]), step + 1) == (RANK, STEP):
        os.kill(os.getpid(), SIGNAL)
    return real_backward(self, step, micro_batches, num_replicas)


if __name__ == "__main__":
    gradients.MEASURED_EVERY_STEPS = 1
    Learner.backward = backward  # type: ignore[method-assign]
    main()
