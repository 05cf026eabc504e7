"""A slower rank gets fewer replicas, once it is known to be slow, and never for noise."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.share_balance import EVERY_STEPS, ShareBalance
from headway.training.launch.base import protocol
from headway.training.parallel.strategy import BatchShare
from headway.training.ranks.distributed import ProcessGroup

REBALANCE = {protocol.STRAGGLERS: "rebalance"}
SPEC = TrainingSpec(global_batch_sequences=64, micro_batch_sequences=4)


class Group(ProcessGroup):
    """Whose other ranks say what the test gives."""

    others: tuple[float, ...] = ()

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tensor([values.item(), *self.others])


class Gang:
    """What rank 0 of some ranks sees, each of which takes some seconds a replica."""

    def __init__(self, replica_s: list[float], environ: dict[str, str], spec: TrainingSpec = SPEC) -> None:
        self.replica_s, self.events = replica_s, []
        group = Group(rank=0, world_size=len(replica_s), device=torch.device("cpu"))
        self.times_replicas = False
        islands = None if spec.integers is None else spec.integers.islands
        self.share = BatchShare(0, len(replica_s), islands=islands)
        ledger: Any = self
        self.balance = ShareBalance(spec, group, ledger, environ)
        self.balance.begin(self)  # type: ignore[arg-type]

    def share_by(self, speeds: tuple[float, ...]) -> None:
        self.share = BatchShare(0, self.share.count, islands=self.share.islands, speeds=speeds)

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def train(self, num_steps: int = EVERY_STEPS, noise: float = 0.0) -> list[int]:
        for step in range(num_steps):
            wobble = 1 + noise * (-1) ** step
            replica_s = tuple(each * wobble for each in self.replica_s) if self.times_replicas else None
            self.balance.take(self, step, 16, replica_s)  # type: ignore[arg-type]
        bounds = self.share.bounds(16)
        return [end - first for first, end in itertools.pairwise(bounds)]


def test_a_rank_of_half_the_speed_is_given_half_as_much_after_some_steps_and_it_is_written_down() -> None:
    gang = Gang([0.1, 0.1, 0.2], REBALANCE)
    assert gang.train(EVERY_STEPS - 1) == [4, 6, 6]
    assert gang.train(1) == [6, 7, 3]
    ((name, fields),) = gang.events
    assert name == "shares.moved" and fields["shares"] == [6, 7, 3]
    assert fields["what"] == (
        "replicas of the ranks 4, 6, 6 -> 6, 7, 3 from step 1 on: the slowest is done after 0.7 s, 1.2 s before."
    )
    gang.replica_s = [0.1, 0.1, 0.1]
    assert gang.train() == [4, 6, 6], "and back again"


def test_noise_moves_nothing() -> None:
    gang = Gang([0.1, 0.105], REBALANCE)
    assert gang.train(5 * EVERY_STEPS, noise=0.5) == [8, 8] and not gang.events


def test_nobody_is_timed_who_did_not_ask_for_it_and_none_whose_ranks_split_a_model() -> None:
    sharded = SPEC.model_copy(update={"parallel": ParallelSpec(shard=2)})
    for gang in (Gang([0.1, 0.2], {}), Gang([0.1, 0.2], REBALANCE, sharded), Gang([0.1], REBALANCE)):
        assert not gang.times_replicas
        gang.train()
        assert not gang.events


def test_shares_of_whole_numbers_are_whole_islands() -> None:
    integers = IntegerCompressionSpec(kind="int8", islands=4)
    gang = Gang([0.1, 0.3], REBALANCE, SPEC.model_copy(update={"gradient_compression": integers}))
    assert gang.train() == [12, 4]


@pytest.mark.parametrize(
    ("table", "others", "shares"),
    [
        ({"cpu": 2.0}, [1.0], [11, 5]),
        ({"": 0.5}, [1.0], [5, 11]),
        ({"cpu": 2.0}, [2.0], [8, 8]),
        ({"NVIDIA H100": 2.0}, [1.0], [8, 8]),
    ],
)
def test_speeds_that_are_given_count_from_the_first_step(
    table: dict[str, float], others: list[float], shares: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "others", tuple(others))
    gang = Gang([0.1, 0.1], {protocol.SPEEDS: json.dumps(table)})
    assert gang.train() == shares
    ((name, fields),) = gang.events
    assert name == "shares.given" and fields["shares"] == shares
    assert ("tells no rank from another (cpu here)" in fields["what"]) == (shares == [8, 8])
