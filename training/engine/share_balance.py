"""How many replicas of a batch each rank has: by speeds that are given, or by what its own replicas take it.

Where each rank has the whole model, it may have any part of a batch, and in exact mode that decides no bit. So a slower
machine has fewer replicas, and nobody waits for it (after LB-BSP, Chen et al., SoCC '20).
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence

import torch

from headway.training.config.parallel import mesh_shape, replica_shares
from headway.training.config.training_spec import TrainingSpec, splits_no_model
from headway.training.engine.learner import Learner
from headway.training.launch.base import protocol
from headway.training.observe.ledger import Ledger
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.utilisation import kind_of_device

EVERY_STEPS = 20
"""Looked at together: one step says little on a machine that others use."""
MIN_GAIN = 1.1
"""How many times as long the slowest rank must take as it would: less is noise, and batches made ahead are lost."""


class ShareBalance:
    """Of one run; all ranks see the same numbers, and decide the same."""

    def __init__(
        self,
        spec: TrainingSpec,
        process_group: ProcessGroup,
        ledger: Ledger,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._ledger, self._process_group, self._islands = ledger, process_group, spec.islands
        world_size = process_group.world_size
        may_differ = (
            not spec.grows_trees
            and spec.asynchronous is None
            and world_size > 1
            and splits_no_model(mesh_shape(spec.parallel, world_size), world_size)
        )
        self._is_measured = may_differ and environ.get(protocol.STRAGGLERS) == "rebalance"
        self._speeds: tuple[float, ...] = ()
        if may_differ and (given := environ.get(protocol.SPEEDS)):
            self._speeds = self._given_speeds(json.loads(given))
            self._report_given(spec.num_replicas)
        self._taken: list[Sequence[float]] = []

    def begin(self, learner: Learner) -> None:
        """With a learner that is new, before it takes up any state."""
        if self._speeds:
            learner.share_by(self._speeds)
        learner.times_replicas = self._is_measured
        self._taken.clear()

    def take(self, learner: Learner, step: int, num_replicas: int, replica_s: Sequence[float] | None) -> None:
        """Take in what one replica took each rank in a step; the next batch may be shared in another way."""
        if replica_s is None:
            return
        self._taken.append(replica_s)
        if len(self._taken) < EVERY_STEPS:
            return
        medians_s = [max(statistics.median(of_rank), 1e-9) for of_rank in zip(*self._taken, strict=True)]
        self._taken.clear()
        speeds = tuple(1 / each for each in medians_s)
        shares, moved = (self._shares(num_replicas, by) for by in (self._speeds, speeds))
        longest_s, moved_s = (
            max(share * replica for share, replica in zip(found, medians_s, strict=True)) for found in (shares, moved)
        )
        if longest_s < MIN_GAIN * moved_s:
            return
        self._speeds = speeds
        learner.share_by(speeds)
        what = (
            f"replicas of the ranks {_counts(shares)} -> {_counts(moved)} from step {step + 1:,} on: the slowest is "
            f"done after {moved_s:.2g} s, {longest_s:.2g} s before."
        )
        self._ledger.event("shares.moved", step=step + 1, shares=moved, before_s=longest_s, after_s=moved_s, what=what)

    def _report_given(self, num_replicas: int) -> None:
        kind, shares = kind_of_device(self._process_group.device), self._shares(num_replicas, self._speeds)
        # A name that is misspelt would be found by nobody.
        what = (
            f"replicas of the ranks {_counts(shares)}, by launch.speeds."
            if self._speeds
            else f"launch.speeds tells no rank from another ({kind} here): shares are equal."
        )
        self._ledger.event("shares.given", shares=shares, what=what)

    def _shares(self, num_replicas: int, speeds: tuple[float, ...]) -> list[int]:
        return [*replica_shares(num_replicas, self._process_group.world_size, islands=self._islands, speeds=speeds)]

    def _given_speeds(self, speeds: Mapping[str, float]) -> tuple[float, ...]:
        """Of all ranks, from a table by device kind; `""` is that of the machine, where it was given by its name."""
        own = speeds.get("", speeds.get(kind_of_device(self._process_group.device), 1.0))
        found = self._process_group.gather(torch.tensor([own], dtype=torch.float64)).tolist()
        return tuple(found) if len(set(found)) > 1 else ()


def _counts(shares: Sequence[int]) -> str:
    return ", ".join(map(str, shares))
