"""The average of weights is the mean that the manual says, the same bits in any slices, and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from headway.training.config.optimizer import EmaSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.optimizers.weight_average import WeightAverage

SHAPE = (13, 37)


def weights(step: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))


def averaged(parameter: nn.Parameter, cut: slice, steps: int, decay: float) -> WeightAverage:
    average = WeightAverage({"a": parameter}, EmaSpec(decay=decay))
    for step in range(1, steps + 1):
        with torch.no_grad():
            parameter.copy_(weights(step)[cut])
        average.update(step)
    return average


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.9999])
def test_it_is_the_mean_of_the_weights_after_each_update_the_newest_counting_most(decay):
    steps = 20
    average = averaged(nn.Parameter(torch.full(SHAPE, 1e6)), slice(None), steps, decay)
    shares = torch.tensor([(1 - decay) * decay ** (steps - step) for step in range(1, steps + 1)], dtype=torch.float64)
    assert float(shares.sum()) == pytest.approx(1 - decay**steps)
    mean = sum(share * weights(step).double() for step, share in enumerate(shares / shares.sum(), 1))
    torch.testing.assert_close(average.values["a"].double(), mean, rtol=1e-5, atol=1e-6)


def test_after_one_update_it_is_the_weights_themselves():
    assert torch.equal(averaged(nn.Parameter(torch.ones(SHAPE)), slice(None), 1, 0.999).values["a"], weights(1))


def test_a_slice_of_it_has_the_bits_of_the_whole_wherever_it_begins_and_ends():
    whole = averaged(nn.Parameter(torch.zeros(SHAPE)), slice(None), 6, 0.7).values["a"]
    for start in range(SHAPE[0]):
        for stop in range(start + 1, SHAPE[0] + 1):
            cut = slice(start, stop)
            own = averaged(nn.Parameter(torch.zeros(stop - start, SHAPE[1])), cut, 6, 0.7)
            assert torch.equal(own.values["a"], whole[cut]), cut


def test_it_stands_in_for_the_weights_and_both_are_what_they_were_also_after_an_error():
    model = nn.Linear(3, 2)
    model.bias.requires_grad = False
    average = WeightAverage(dict(model.named_parameters()), EmaSpec())
    average.values["weight"].fill_(2.0)
    before = model.weight.detach().clone()
    with pytest.raises(KeyError), average.in_place():
        assert (model.weight == 2.0).all() and average.values.keys() == {"weight"}
        raise KeyError
    assert torch.equal(model.weight, before) and (average.values["weight"] == 2.0).all()


def test_a_run_without_it_is_described_as_before_there_was_such_a_thing_and_trees_have_none():
    assert "ema" not in TrainingSpec().model_dump()
    with pytest.raises(ValidationError, match="ema: trees"):
        TrainingSpec.model_validate({"ema": {}, "recipe": {"name": "gradient-boosting"}})
