"""Batch normalisation: the running statistics are those of all replicas, moved once a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.parallel.batch_statistics import BatchStatistics
from headway.training.ranks.communication import Collectives
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.classification import Classifier

ALONE = Collectives(ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))


def train(model, statistics, steps):
    model.train()
    for replicas in steps:
        statistics.begin_step()
        for rows in replicas:
            statistics.begin_replica()
            model(rows)
            statistics.end_replica()
        statistics.end_step()


def rows(steps, replicas):
    return torch.randn(steps, replicas, 6, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_running_statistics_follow_the_mean_over_replicas_with_the_models_own_momentum(momentum):
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=momentum))
    steps = rows(3, 4)
    train(model, BatchStatistics(model, ALONE.gather), steps)

    mean, variance = torch.zeros(3), torch.ones(3)
    for index, replicas in enumerate(steps):
        rate = 1 / (index + 1) if momentum is None else momentum
        mean = mean.lerp(replicas.mean(dim=1).mean(dim=0), rate)
        variance = variance.lerp(replicas.var(dim=1).mean(dim=0), rate)
    torch.testing.assert_close(model[0].running_mean, mean)
    torch.testing.assert_close(model[0].running_var, variance)
    assert model[0].momentum == momentum
    assert int(model[0].num_batches_tracked) == 3, "steps, however many replicas they have"


def test_with_one_replica_it_is_plain_batch_normalisation():
    steps = rows(4, 1)
    model, plain = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    train(model, BatchStatistics(model, ALONE.gather), steps)
    for (replica,) in steps:
        plain(replica)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_a_layer_that_is_frozen_keeps_its_statistics_bit_for_bit():
    class Frozen(nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    model = Frozen(3)
    model.running_mean.copy_(torch.tensor([0.1, -3.3, 1e-8]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, BatchStatistics(model, ALONE.gather), rows(3, 4))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_that_only_some_replicas_use_counts_the_others_as_what_it_was():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            return self.norm(x) if x[0, 0] > 100 else x

    steps = rows(1, 4)
    steps[0, 1, 0, 0] = 1000
    model = Sometimes()
    train(model, BatchStatistics(model, ALONE.gather), steps)
    torch.testing.assert_close(model.norm.running_mean, 0.1 * steps[0, 1].mean(dim=0) / 4)


def test_synchronised_batch_normalisation_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"model\.0\.norm: SyncBatchNorm.*plain batch normalisation"):
        BatchStatistics(nn.Sequential(nn.ModuleDict({"norm": nn.SyncBatchNorm(3)})), ALONE.gather)


@pytest.mark.parametrize("replaces", [True, False])
def test_any_other_stored_buffer_that_training_changes_is_refused_by_name(replaces):
    class Counts(nn.Module):
        def __init__(self, persistent):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1), persistent=persistent)

        def forward(self, x):
            if replaces:
                self.seen = self.seen + 1
            else:
                self.seen += 1

    with pytest.raises(ConfigError, match=r"model\.0\.seen: training changes this buffer"):
        model = nn.Sequential(Counts(persistent=True))
        train(model, BatchStatistics(model, ALONE.gather), rows(1, 2))
    model = nn.Sequential(Counts(persistent=False))  # a cache, for all we know
    train(model, BatchStatistics(model, ALONE.gather), rows(1, 2))


def test_values_loaded_between_steps_are_no_change_by_training():
    model = nn.Linear(3, 3)
    model.register_buffer("scale", torch.ones(1))
    statistics = BatchStatistics(model, ALONE.gather)
    model.scale.fill_(2)
    train(model, statistics, rows(1, 2))


class Records(Classifier):
    """A recipe with batch normalisation."""

    def build(self):
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))

    def hidden_matrices(self, model):
        return ()

    def inputs(self, batch):
        return batch["x"]


def test_running_statistics_are_in_the_checkpoint_and_used_at_evaluation():
    training = TrainingSpec(global_batch_sequences=12, micro_batch_sequences=6)
    alone, label = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")), torch.zeros(6, 1, dtype=torch.int64)
    learner, other = (Learner(Records(), training, alone) for _ in range(2))
    for step, replicas in enumerate(rows(3, 2)):
        sums = learner.exchange(learner.backward(step, [{"x": x, "label": label} for x in replicas]), stop=False)
        learner.update(step, sums, learner.gradient_norm(sums))
    kept = {name: value.clone() for name, value in learner.tensors().items()}
    assert torch.equal(kept["model.0.running_mean"], learner.model[0].running_mean)
    batch = {"x": rows(1, 1)[0, 0], "label": label}
    other.load(kept, learner.scalars())
    assert other.proof_loss(batch) == learner.proof_loss(batch)
    other.load(kept | {"model.0.running_mean": kept["model.0.running_mean"] + 1}, {})
    assert other.proof_loss(batch) != learner.proof_loss(batch)
