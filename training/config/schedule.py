"""In which order a pipeline's stage runs the forward and backward passes of a step; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple


class Pass(NamedTuple):
    is_forward: bool
    micro_batch: int


def passes(kind: Literal["gpipe", "1f1b"], *, num_micro_batches: int, stage: int, num_stages: int) -> Iterator[Pass]:
    """Every micro-batch once forward and once back.

    `gpipe` (Huang et al., 2019) runs all forward first, and holds the activations of all. `1f1b` (Narayanan et al.,
    PipeDream-Flush, 2021) runs one back as soon as there is one, and holds those of at most `num_stages - stage`.
    """
    ahead = num_micro_batches if kind == "gpipe" else min(num_micro_batches, num_stages - stage - 1)
    for index in range(ahead):
        yield Pass(True, index)
    for index in range(num_micro_batches):
        if ahead + index < num_micro_batches:
            yield Pass(True, ahead + index)
        yield Pass(False, index)
