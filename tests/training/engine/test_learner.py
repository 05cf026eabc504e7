"""One training step: the gradient is that of the mean loss a token, and bad numbers never reach the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.proof import proof_loss
from headway.training.config.optimizer import EmaSpec
from headway.training.config.order_spec import MixedDataset
from headway.training.config.shards import TRAIN
from headway.training.data.load.device_copy import to_tensors
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import RankBatches, step_rows
from headway.training.engine.learner import Learner, load_model_tensors, model_tensors
from headway.training.engine.run_documents import load_run_documents
from headway.training.parallel.gradients import MEASURED_EVERY_STEPS
from headway.training.ranks.distributed import ProcessGroup

CPU = torch.device("cpu")
ALONE = ProcessGroup(rank=0, world_size=1, device=CPU)


@pytest.fixture
def documents(shared_project):
    return load_run_documents(shared_project.workspace, shared_project.publish_run().link)


@pytest.fixture
def reader(shared_project):
    return ShardReader(shared_project.workspace, shared_project.manifest, TRAIN)


def make(documents, **changes) -> Learner:
    spec = documents.training.model_copy(update=changes)
    torch.set_num_threads(spec.num_threads)  # as a rank does
    return Learner(documents.recipe(), spec, ALONE)


def one_step(learner, documents, reader, step=0):
    produce = RankBatches(reader, documents.training, share=learner.share, device=CPU)
    return learner.exchange(learner.backward(step, produce(step)), stop=False)


def test_the_tree_of_replicas_gives_the_gradient_of_the_whole_batch(documents, reader):
    learner = make(documents)
    # Output projections start at zero, which would hide most gradients.
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    sums = one_step(learner, documents, reader)
    summed = {name: value.grad.clone() for name, value in learner.model.named_parameters()}

    rows = step_rows(documents.training, reader, 0).reshape(-1)
    learner.model.zero_grad(set_to_none=True)
    losses = documents.recipe().losses(learner.model, to_tensors(reader.gather(rows), CPU))
    losses.nats.sum().backward()

    assert sums.num_tokens == int(losses.valid.sum())
    assert sums.nats == pytest.approx(float(losses.nats.detach().double().sum()), rel=1e-6)
    for name, value in learner.model.named_parameters():
        torch.testing.assert_close(summed[name], value.grad, rtol=1e-4, atol=1e-5)
        assert value.grad.abs().max() > 0, name


def test_the_norm_of_the_first_replica_is_taken_now_and_then_and_makes_the_noise_scale(documents, reader):
    learner = make(documents)
    for step in range(2 * MEASURED_EVERY_STEPS):
        produce = RankBatches(reader, documents.training, share=learner.share, device=CPU)
        parameters = list(learner.model.parameters())
        losses = documents.recipe().losses(learner.model, produce(step)[0])
        gradients = torch.autograd.grad(losses.nats.sum(), parameters)
        sums = one_step(learner, documents, reader, step)
        if (step + 1) % MEASURED_EVERY_STEPS:
            assert sums.replica_square is None
        else:
            assert sums.replica_square == pytest.approx(sum(float(each.square().sum()) for each in gradients), rel=1e-5)
        assert ("gradient_noise_steps" in learner.scalars()) == (step >= MEASURED_EVERY_STEPS)
        learner.update(step, sums, learner.gradient_norm(sums))
    assert learner.scalars()["gradient_noise_steps"] == 2

    again = make(documents)
    again.load(learner.tensors(), learner.scalars())
    assert again.noise_scale == learner.noise_scale


@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-4), ("fp16", 0.2)])
def test_noise_is_of_gradients_before_clipping_and_without_the_loss_scale(documents, reader, precision, within):
    optimizer = documents.training.optimizer.model_copy(update={"gradient_clip": 1e-6})
    learner, spec = make(documents, precision=precision, optimizer=optimizer), documents.training
    step = MEASURED_EVERY_STEPS - 1
    produce = RankBatches(reader, spec, share=learner.share, device=CPU)
    batches, parameters = list(produce(step)), list(learner.model.parameters())

    def gradients(batch):
        return torch.autograd.grad(documents.recipe().losses(learner.model, batch).nats.sum(), parameters)

    by_replica = [gradients(batch) for batch in batches]
    whole = [sum(each) for each in zip(*by_replica, strict=True)]
    few, many = spec.micro_batch_sequences, spec.global_batch_sequences
    small = sum(float(each.square().sum()) for each in by_replica[0]) / few**2
    large = sum(float(each.square().sum()) for each in whole) / many**2

    sums = learner.exchange(learner.backward(step, produce(step)), stop=False)
    learner.update(step, sums, learner.gradient_norm(sums))
    variance = (small - large) / (1 / few - 1 / many)
    assert learner.scalars()["gradient_noise_variance"] == pytest.approx(variance, rel=within)
    signal = (many * large - few * small) / (many - few)
    assert learner.scalars()["gradient_noise_signal"] == pytest.approx(signal, rel=within, abs=within * large)


def test_where_datasets_are_mixed_one_replica_is_no_sample_of_the_batch(documents, reader):
    order = documents.training.order.model_copy(update={"mix": (MixedDataset(manifest="0" * 64),)})
    learner = make(documents, order=order)
    sums = one_step(learner, documents, reader, MEASURED_EVERY_STEPS - 1)
    assert sums.replica_square is None


def test_without_replicas_there_is_nothing_to_compare(documents, reader):
    learner = make(documents, micro_batch_sequences=documents.training.global_batch_sequences)
    produce = RankBatches(reader, learner._spec, share=learner.share, device=CPU)
    step = MEASURED_EVERY_STEPS - 1
    sums = learner.exchange(learner.backward(step, produce(step)), stop=False)
    learner.update(step, sums, learner.gradient_norm(sums))
    assert sums.replica_square is None and learner.noise_scale is None and learner.scalars() == {}


def test_training_lowers_the_loss(documents, reader):
    learner = make(documents, max_steps=200)
    losses = []
    for step in range(30):
        sums = one_step(learner, documents, reader, step)
        learner.update(step, sums, learner.gradient_norm(sums))
        losses.append(sums.nats / sums.num_tokens)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_what_a_forward_pass_wrote_into_buffers_is_undone_with_a_discarded_step(documents, reader):
    class Counting:
        """The recipe with batch statistics, which each forward pass changes."""

        def __init__(self, recipe):
            self._recipe, self.hidden_matrices = recipe, recipe.hidden_matrices

        def build(self):
            model = self._recipe.build()
            model.seen = nn.BatchNorm1d(1)
            return model

        def losses(self, model, batch):
            model.seen(torch.full((2, 1), float("nan")))
            return self._recipe.losses(model, batch)

    learner = Learner(Counting(documents.recipe()), documents.training, ALONE)
    before = {name: value.clone() for name, value in learner.tensors().items()}

    one_step(learner, documents, reader)
    assert torch.isnan(learner.model.seen.running_mean).all()
    learner.discard()

    assert all(torch.equal(value, before[name]) for name, value in learner.tensors().items())


def test_random_draws_of_a_replica_depend_on_step_and_replica_alone(documents, reader):
    class Noisy:
        """The recipe with noise in its loss, as dropout would add."""

        def __init__(self, recipe):
            self._recipe, self.drawn = recipe, []
            self.build, self.hidden_matrices = recipe.build, recipe.hidden_matrices

        def losses(self, model, batch):
            self.drawn.append(float(torch.rand(())))
            return self._recipe.losses(model, batch)

    drawn = []
    for steps in ((0, 1, 2), (2,)):
        recipe = Noisy(documents.recipe())
        learner = Learner(recipe, documents.training, ALONE)
        for step in steps:
            one_step(learner, documents, reader, step)
        drawn.append(recipe.drawn)
    assert drawn[0][-4:] == drawn[1]
    assert len(set(drawn[0])) == 12


def test_an_average_is_the_model_that_is_evaluated_and_kept_and_training_is_none_the_wiser(documents, reader):
    averaged, plain = make(documents, ema=EmaSpec(decay=0.6)), make(documents)
    batch = RankBatches(reader, documents.training, share=plain.share, device=CPU)(7)[0]
    assert averaged.proof_loss(batch) == plain.proof_loss(batch), "before the first update"
    seen = {name: [] for name in model_tensors(plain.model)}
    for step in range(4):
        for learner in (averaged, plain):
            sums = one_step(learner, documents, reader, step)
            learner.update(step, sums, learner.gradient_norm(sums))
        averaged.proof_loss(batch)
        for name, value in model_tensors(plain.model).items():
            seen[name].append(value.detach().double().clone())
    assert plain.tensors().keys() == {name for name in averaged.tensors() if not name.startswith("trained.")}
    own, shares = averaged.tensors(), [0.6**3, 0.6**2, 0.6, 1.0]
    for name, values in seen.items():
        assert torch.equal(own[f"trained.{name}"], plain.tensors()[f"model.{name}"])
        mean = sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
        torch.testing.assert_close(own[f"model.{name}"].double(), mean, rtol=1e-5, atol=1e-6)
    for name, value in plain.moments().items():
        assert torch.equal(value, own[name])

    model = documents.recipe().build()
    load_model_tensors(model, own)
    assert proof_loss(documents.recipe(), model, batch) == averaged.proof_loss(batch) != plain.proof_loss(batch)
    assert averaged.weights().keys() == {f"trained.{name}" for name in seen}, "what a save has to copy at once"


def test_training_goes_on_from_a_model_that_another_run_left(documents, reader):
    learner = make(documents, ema=EmaSpec())
    for value in learner.tensors().values():
        value.copy_(torch.rand_like(value))
    learner.begin_from_model()
    own = learner.tensors()
    for name in model_tensors(learner.model):
        assert torch.equal(own[f"trained.{name}"], own[f"model.{name}"])


def test_a_tied_weight_is_stored_once_and_persistent_buffers_are_stored_too():
    model = nn.Module()
    model.a, model.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    model.b.weight = model.a.weight
    model.register_buffer("kept", torch.ones(1))
    model.register_buffer("derived", torch.ones(1), persistent=False)
    assert sorted(model_tensors(model)) == ["a.weight", "kept"]


def test_weights_that_do_not_fit_the_model_are_refused_by_name():
    model = nn.Linear(2, 2, bias=False)
    good = {"model.weight": torch.ones(2, 2)}
    load_model_tensors(model, good | {"optimizer.anything": torch.ones(1)})
    assert torch.equal(model.weight, torch.ones(2, 2))
    for tensors in ({}, {"model.weight": torch.ones(2, 3)}, good | {"model.other": torch.ones(1)}):
        with pytest.raises(IntegrityError, match=r"model\.(weight|other) does not fit"):
            load_model_tensors(model, tensors)
