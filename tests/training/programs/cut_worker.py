"""A rank that is signalled in the midst of a validation: as the worker, told by `CUT` where, and by what.

`CUT` is `RANK STEP BLOCK SIGNAL`: this rank sends itself that signal once it has looked at so many blocks of its own in
the validation after that step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headway.training.engine.learner import Learner
from headway.training.evaluation import validation
from headway.training.programs.worker import main

RANK, STEP, BLOCK, SIGNAL = map(int, os.environ["CUT"].split())
real_run, real_measures = validation.Validation.run, Learner.measures
num_left = [0]


def run(self: validation.Validation, step: int) -> bool:
    num_left[0] = BLOCK if (step, int(os.environ["RANK"])) == (STEP, RANK) else 0
    return real_run(self, step)


def measures(self: Learner, batch: Any) -> Mapping[str, Tensor]:
    num_left[0] -= 1
    if num_left[0] == 0:
        os.kill(os.getpid(), SIGNAL)
    return real_measures(self, batch)


if __name__ == "__main__":
    validation.ASKED_EVERY_S = 0.0  # its rows are looked at within less
    validation.Validation.run, Learner.measures = run, measures  # type: ignore[method-assign]
    main()
