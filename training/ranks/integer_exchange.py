"""Gradients that travel as whole numbers, which add up to the same sum in any order and on any number of ranks.

The global batch is made of islands, each a subtree of the replicas. Each island rounds its own gradient, and so the
bits depend on islands and never on ranks. A block of elements has one scale, which all islands share: the smallest
power of two at which no island's whole number is larger than its levels, after IntSGD (Mishchenko et al., ICLR 2022).
What rounding takes off an island adds to its next gradient: error feedback (Seide et al., 2014; Karimireddy et al.,
2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.ranks.communication import Collectives, Exchange

TYPES = {"int4": torch.int8, "int8": torch.int8, "int32": torch.int32}
NEXT = 16
"""What the second of two small numbers in a byte is multiplied by: sums of both add up in one addition."""
SMALLEST_EXPONENT = -100
"""Of a scale, which has to have an inverse in fp32. What is smaller is kept for later, or lost without feedback."""


class _Rounded(NamedTuple):
    rows: Sequence[Tensor]
    values: list[Tensor]
    """Of each island, what is to be rounded, flat."""
    maxima: Tensor
    pending: dist.Work | None


class IntegerExchange:
    """Sums the islands of all ranks. A gradient that is not finite anywhere makes its block's sum so on every rank.

    Args:
        collectives: all ranks'.
        sums: how whole numbers travel.
        islands: this rank's.
        length: of all buckets of a step; each is a whole number of blocks.
    """

    def __init__(
        self,
        spec: IntegerCompressionSpec,
        collectives: Collectives,
        sums: Exchange,
        *,
        islands: range,
        length: int,
        device: torch.device,
    ) -> None:
        self._spec, self._collectives, self._sums = spec, collectives, sums
        self.loss_scale = 1.0
        """What gradients are multiplied by; what is kept for later is not."""
        # Of two tensors, since a save may still read what the next step is not to change.
        self.islands = islands
        shape = (len(islands), length) if spec.feedback else (0, 0)
        self.residuals, self._next_residuals = (torch.zeros(shape, device=device) for _ in range(2))
        """What each of this rank's islands adds to its next gradient (islands, length)."""
        self._a_word = spec.numbers_a_word
        self._totals = torch.empty(length // self._a_word, dtype=TYPES[spec.kind], device=device)
        self._scratch = torch.empty(2, 0, device=device)
        self._has_left = False
        self._started: list[_Rounded] = []
        self._scales: list[Tensor] = []
        self._ends: list[int] = [0]

    @property
    def has_feedback(self) -> bool:
        return self._spec.feedback

    def start(self, rows: Sequence[Tensor]) -> None:
        place = slice(self._ends[-1], self._ends[-1] + rows[-1].numel())
        self._ends.append(place.stop)
        values, maxima = [], []
        for island, row in enumerate(rows):
            if self._spec.feedback:
                old, new = self.residuals[island, place], self._next_residuals[island, place]
                # The scale is a power of two: dividing by it rounds nothing.
                row = torch.add(old, row, alpha=1 / self.loss_scale, out=new)
            values.append(row)
            maxima.append(torch.linalg.vector_norm(row.view(-1, self._spec.block), ord=torch.inf, dim=1))
        largest = maxima[0] if len(maxima) == 1 else torch.stack(maxima).amax(dim=0)
        # Backends keep or drop a NaN by the rank that has it, and it would round to some number.
        largest = torch.nan_to_num_(largest, nan=torch.inf, posinf=torch.inf)
        pending = self._collectives.maximum(largest) if self._collectives.num_ranks > 1 else None
        self._started.append(_Rounded(rows, values, largest, pending))
        # The bucket before has its scales by now, most likely.
        if len(self._started) > 1:
            self._round(len(self._started) - 2)

    def finish(self) -> None:
        if self._started:
            self._round(len(self._started) - 1)
        self._sums.finish()
        for number, bucket in enumerate(self._started):
            sums = bucket.rows[-1].view(-1, self._spec.block)
            # Without feedback values have the gradient's own scale.
            unit = self.loss_scale if self._spec.feedback else 1.0
            torch.mul(self._sum(number).view_as(sums), (self._scales[number] * unit)[:, None], out=sums)
        self.residuals, self._next_residuals = self._next_residuals, self.residuals
        self._has_left = True
        self._started, self._scales, self._ends = [], [], [0]

    def move(self, islands: range, owners: Sequence[int], new_owners: Sequence[int]) -> None:
        """Take over these islands from the next step on; all ranks call it.

        Args:
            owners, new_owners: the rank that has each island of all, before and after.
        """
        if self._spec.feedback:
            self.residuals = self._collectives.move_rows(self.residuals, self.islands, islands, owners, new_owners)
            self._next_residuals = torch.zeros_like(self.residuals)
        self.islands, self._has_left = islands, False

    def discard(self) -> None:
        """Take back what the last step left for the next; once a step."""
        assert self._has_left, "there is nothing to take back"
        self._has_left = False
        self.residuals, self._next_residuals = self._next_residuals, self.residuals

    def _round(self, number: int) -> None:
        _, values, maxima, pending = self._started[number]
        if pending is not None:
            self._collectives.wait(pending)
        scales = _scales(maxima, self._spec.levels)
        self._scales.append(scales)
        inverse, total = (1 / scales)[:, None], self._total(number)
        length = total.numel() * self._a_word
        # Kept: fresh memory costs more than the arithmetic.
        if self._scratch.shape[1] < length:
            self._scratch = self._scratch.new_empty(2, length)
        summed, other = (row[:length].view(-1, self._spec.block) for row in self._scratch)
        for island, value in enumerate(values):
            blocks = value.view(-1, self._spec.block)
            rounded = torch.mul(blocks, inverse, out=other if island else summed).round_()
            if self._spec.feedback:
                blocks.addcmul_(rounded, scales[:, None], value=-1)
            if island:
                summed.add_(rounded)  # fp32 holds the sum of all islands exactly
        if self._a_word == 2:
            first, second = summed.view(-1, 2).unbind(dim=1)
            total.copy_(first.add_(second, alpha=NEXT))
        else:
            total.copy_(summed.view(-1))
        self._sums.start([total])

    def _total(self, number: int) -> Tensor:
        """Of a bucket, as it travels."""
        return self._totals[self._ends[number] // self._a_word : self._ends[number + 1] // self._a_word]

    def _sum(self, number: int) -> Tensor:
        """Of a bucket, number by number."""
        total = self._total(number)
        if self._a_word == 1:
            return total
        # Each is within half of what the other counts in.
        packed = total.float()
        second = torch.round(packed / NEXT)
        return torch.stack((packed.sub_(second, alpha=NEXT), second), dim=1)


def _scales(maxima: Tensor, levels: int) -> Tensor:
    """For each block the smallest power of two by which its largest value comes to `levels` at most; else infinite."""
    mantissa, exponent = torch.frexp(maxima / levels)
    # Exactly a power of two is one itself; 0 has the mantissa 0.
    exponent = (exponent - (mantissa == 0.5).int()).clamp_(min=SMALLEST_EXPONENT)
    scales = torch.ldexp(torch.ones_like(maxima), exponent)
    return torch.where(torch.isfinite(maxima), scales, torch.inf)
