"""Model FLOPs: what recipes say of themselves is what torch counts, and utilisation is of all ranks' peak."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headway.training.config.shapes import ImageShape, TabularShape, TokenShape
from headway.training.engine.learner import Learner, Sums
from headway.training.engine.step_recorder import StepRecorder
from headway.training.engine.turns import Step
from headway.training.launch.node.rank_process import RankProcess
from headway.training.observe.telemetry import Stopwatch
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.utilisation import flops_per_token, parameters_of
from headway.training.recipes.load import load_recipe

TOKENS = TokenShape(vocab_size=64, context_tokens=32)
IMAGES = ImageShape(channels=3, height=18, width=9, num_classes=5)
PEAK_FLOPS_PER_S = 1e9


@pytest.mark.parametrize(
    ("name", "shape", "model", "batch", "num_targets"),
    [
        ("language-model", TOKENS, {"depth": 3}, {"tokens": torch.ones(2, 33, dtype=torch.int64)}, 64),
        ("language-model", TOKENS, {"tied_embeddings": True}, {"tokens": torch.ones(2, 33, dtype=torch.int64)}, 64),
        (
            "image-classifier",
            IMAGES,
            {"stages": 3},
            {"image": torch.zeros(4, 3, 18, 9, dtype=torch.int64), "label": torch.zeros(4, 1, dtype=torch.int64)},
            4,
        ),
    ],
    ids=["attention", "tied embeddings", "convolutions"],
)
def test_a_recipes_own_figure_is_three_times_what_torch_counts_forward(name, shape, model, batch, num_targets):
    """A backward pass is twice a forward pass: one product for the input's gradient, one for the weight's."""
    recipe = load_recipe(name, model, shape)
    built = recipe.build()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        recipe.losses(built, batch)
    own = flops_per_token(recipe, parameters_of(built))
    # But for gains and biases, which are added or multiplied once.
    assert own == pytest.approx(3 * counted.get_total_flops() / num_targets, rel=0.01)


def test_a_recipe_that_says_nothing_counts_six_for_each_parameter():
    recipe = load_recipe("tabular-classifier", {}, TabularShape(num_numeric=3, cardinalities=(5,), num_classes=2))
    assert flops_per_token(recipe, 1000) == 6000


def test_utilisation_is_the_models_flops_over_the_peak_of_all_ranks(monkeypatch, tmp_path, tiny_training):
    monkeypatch.setattr("headway.training.engine.step_recorder.peak_flops_per_s", lambda *_: PEAK_FLOPS_PER_S)
    recipe = load_recipe("language-model", tiny_training.recipe.model, TOKENS)
    process_group = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    rank, events = RankProcess(tmp_path), []
    rank.ledger.listeners.append(events.append)
    learner = Learner(recipe, tiny_training, process_group)
    for num_devices in (1, 4):
        four = ProcessGroup(rank=0, world_size=num_devices, device=process_group.device)
        recorder, watch = StepRecorder(rank, recipe, tiny_training, four, learner), Stopwatch(four.traffic)
        watch.lap("compute")
        recorder(Step(1, 0, "taken", Sums(nats=1.0, num_tokens=64, stop=False), 1.0, 0.1, 1), watch.times)
    (alone, spread) = (event for event in events if event["event"] == "step")
    model = next(event for event in events if event["event"] == "model")
    flops = 64 * model["flops_per_token"]
    assert alone["mfu"] == pytest.approx(flops / alone["duration_s"] / PEAK_FLOPS_PER_S)
    assert spread["mfu"] == pytest.approx(flops / spread["duration_s"] / PEAK_FLOPS_PER_S / 4)
    assert model["num_parameters"] == parameters_of(learner.model)
