"""Update rules: torch's own bits without torch's own import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.training.config.optimizer import OptimizerSpec
from headway.training.optimizers.elementwise import SGD, AdamW
from headway.training.optimizers.muon import Muon, orthogonalise

REPOSITORY = Path(__file__).resolve().parents[3]
SHAPES = ((33, 17), (64,), (5, 3, 3), (1,))


def fresh() -> dict[str, nn.Parameter]:
    torch.manual_seed(1)
    return {str(index): nn.Parameter(torch.randn(shape)) for index, shape in enumerate(SHAPES)}


def drawn_gradients(parameters: dict[str, nn.Parameter], step: int) -> None:
    torch.manual_seed(100 + step)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape)


def weights_after(parameters: dict[str, nn.Parameter], step_once, num_steps: int = 5) -> list[torch.Tensor]:
    for step in range(num_steps):
        drawn_gradients(parameters, step)
        step_once(step)
    return [parameter.detach() for parameter in parameters.values()]


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_torchs_own(implementation, decay):
    spec = OptimizerSpec(kind="adamw", implementation=implementation)
    ours, theirs = fresh(), fresh()
    rule = AdamW(ours, spec, weight_decay=decay)
    own = {"fused": True} if implementation == "fused" else {"foreach": True}
    reference = torch.optim.AdamW(
        theirs.values(), lr=0.01, betas=(spec.beta1, spec.beta2), eps=spec.epsilon, weight_decay=decay, **own
    )
    for mine, other in zip(
        weights_after(ours, lambda step: rule.update(0.01, step + 1)),
        weights_after(theirs, lambda _step: reference.step()),
        strict=True,
    ):
        if implementation == "fused":
            assert torch.equal(mine, other)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize(
    ("momentum", "nesterov", "decay"), [(0.0, False, 0.0), (0.9, False, 0.1), (0.9, True, 0.0), (0.9, True, 0.1)]
)
def test_sgd_is_torchs_own(implementation, momentum, nesterov, decay):
    spec = OptimizerSpec(kind="sgd", implementation=implementation, momentum=momentum, nesterov=nesterov)
    ours, theirs = fresh(), fresh()
    rule = SGD(ours, spec, weight_decay=decay)
    own = {"fused": True} if implementation == "fused" else {"foreach": True}
    reference = torch.optim.SGD(
        theirs.values(), lr=0.01, momentum=momentum, nesterov=nesterov, weight_decay=decay, **own
    )
    for mine, other in zip(
        weights_after(ours, lambda step: rule.update(0.01, step + 1)),
        weights_after(theirs, lambda _step: reference.step()),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
    assert bool(rule.moments) == bool(momentum)


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_a_gradient_that_lies_in_memory_in_another_order_moves_the_right_elements(implementation):
    def weights(parameter: nn.Parameter) -> torch.Tensor:
        spec = OptimizerSpec(kind="adamw", implementation=implementation)
        rule = AdamW({"a": parameter}, spec, weight_decay=0.1)
        parameter.grad = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5) - 50
        rule.update(0.1, 1)
        return parameter.detach()

    plain = torch.ones(2, 3, 4, 5)
    assert torch.equal(
        weights(nn.Parameter(plain.clone())),
        weights(nn.Parameter(plain.clone(memory_format=torch.preserve_format).to(memory_format=torch.channels_last))),
    )


def test_parameters_of_several_types_are_updated_together():
    parameters = {"a": nn.Parameter(torch.ones(8)), "b": nn.Parameter(torch.ones(8, dtype=torch.bfloat16))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    AdamW(parameters, OptimizerSpec(kind="adamw"), weight_decay=0.0).update(0.5, 1)
    assert all(parameter.tolist() == pytest.approx([0.5] * 8) for parameter in parameters.values())


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_loses_its_scales(shape):
    torch.manual_seed(0)
    matrices = torch.randn(*shape) * torch.logspace(-2, 2, shape[0])[:, None, None]
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)

    turned = orthogonalise(matrices)

    singular = (u.mT @ turned @ v.mT).diagonal(dim1=-2, dim2=-1)
    assert singular.min() > 0.3 and singular.max() < 1.3


def test_a_matrix_that_lies_over_several_ranks_is_put_together_for_muon_and_taken_apart_again():
    spec = OptimizerSpec(kind="muon")
    torch.manual_seed(0)
    matrix, slope = torch.randn(6, 4), torch.randn(6, 4)
    whole = nn.Parameter(matrix.clone())
    part = nn.Parameter(matrix[2:5].clone())
    seen = []

    class Slices:
        def whole_matrix(self, name: str, own: torch.Tensor) -> torch.Tensor:
            seen.append((name, own.shape))
            return torch.cat((rest[:2], own, rest[5:]))

        def slice_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
            return whole[2:5]

    momentum = torch.zeros_like(slope).lerp(slope, 1 - spec.matrix_momentum)
    rest = slope.lerp(momentum, spec.matrix_momentum)
    whole.grad, part.grad = slope, slope[2:5].clone()
    Muon({"a": whole}, spec, weight_decay=0.1).update(0.1, 1)
    Muon({"a": part}, spec, weight_decay=0.1, matrices=Slices()).update(0.1, 1)
    assert torch.equal(part, whole[2:5]) and seen == [("a", (3, 4))]


NO_COMPILER = """
import sys
import torch
from torch import nn
from headway.training.optimizers.elementwise import SGD, AdamW
from headway.training.optimizers.muon import Muon
from headway.training.config.optimizer import OptimizerSpec

for implementation in ("fused", "foreach"):
    parameter = nn.Parameter(torch.ones(3, 3))
    parameter.grad = torch.ones(3, 3)
    for rule in (AdamW, SGD, Muon):
        rule({"a": parameter}, OptimizerSpec(implementation=implementation), weight_decay=0.1).update(0.1, 1)
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.process
def test_no_rule_imports_the_compiler():
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", NO_COMPILER], env=environment, check=True)
