"""AdamW and SGD, each in two implementations: one fused kernel, or torch's operations over whole lists of tensors.

The kernels are called themselves: building one of torch's own optimizers imports its compiler, 1 to 1.5 s for every
rank and attempt. They come out as `torch.optim`'s do, bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from headway.training.config.optimizer import OptimizerSpec
from headway.training.optimizers.update_rule import Moments, Parameters, alike, gradient, zeros_like

Tensors = list[Tensor]


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def __init__(self, parameters: Parameters, spec: OptimizerSpec, *, weight_decay: float) -> None:
        self._parameters, self._spec, self._weight_decay = dict(parameters), spec, weight_decay
        self.moments: Moments = {"mean": zeros_like(parameters), "mean_square": zeros_like(parameters)}

    @torch.no_grad()
    def update(self, lr: float, num_updates: int) -> None:
        move = self._fused if self._spec.implementation == "fused" else self._foreach
        # Fused and foreach kernels take lists of one type and device.
        for names in alike(self._parameters):
            parameters = [self._parameters[name] for name in names]
            values, gradients = list[Tensor](parameters), [gradient(each) for each in parameters]
            means, mean_squares = ([moment[name] for name in names] for moment in self.moments.values())
            move(values, gradients, means, mean_squares, lr, num_updates)

    def _fused(
        self, values: Tensors, gradients: Tensors, means: Tensors, mean_squares: Tensors, lr: float, num_updates: int
    ) -> None:
        spec = self._spec
        # The kernel takes the step as a tensor for each parameter; all share this one.
        step = torch.full((), float(num_updates), device=values[0].device)
        torch._fused_adamw_(
            values,
            gradients,
            means,
            mean_squares,
            [],
            [step] * len(values),
            lr=lr,
            beta1=spec.beta1,
            beta2=spec.beta2,
            weight_decay=self._weight_decay,
            eps=spec.epsilon,
            amsgrad=False,
            maximize=False,
        )
        increment_version([*means, *mean_squares])  # which fused kernels do not, and checkpoints go by

    def _foreach(
        self, values: Tensors, gradients: Tensors, means: Tensors, mean_squares: Tensors, lr: float, num_updates: int
    ) -> None:
        spec = self._spec
        # In place, and in this order: it is `torch.optim.AdamW`'s, and another order rounds differently.
        if self._weight_decay:
            torch._foreach_mul_(values, 1 - lr * self._weight_decay)
        torch._foreach_lerp_(means, gradients, 1 - spec.beta1)
        torch._foreach_mul_(mean_squares, spec.beta2)
        torch._foreach_addcmul_(mean_squares, gradients, gradients, 1 - spec.beta2)
        divisors = torch._foreach_sqrt(mean_squares)
        # Bias correction as one division of the root, as torch does it.
        torch._foreach_div_(divisors, math.sqrt(1 - spec.beta2**num_updates))
        torch._foreach_add_(divisors, spec.epsilon)
        torch._foreach_addcdiv_(values, means, divisors, -lr / (1 - spec.beta1**num_updates))


class SGD:
    """Stochastic gradient descent with momentum (Sutskever et al., 2013), weight decay being part of the gradient."""

    def __init__(self, parameters: Parameters, spec: OptimizerSpec, *, weight_decay: float) -> None:
        self._parameters, self._spec, self._weight_decay = dict(parameters), spec, weight_decay
        self.moments: Moments = {"momentum": zeros_like(parameters)} if spec.momentum else {}

    @torch.no_grad()
    def update(self, lr: float, num_updates: int) -> None:
        move = self._fused if self._spec.implementation == "fused" else self._foreach
        for names in alike(self._parameters):
            parameters = [self._parameters[name] for name in names]
            values, gradients = list[Tensor](parameters), [gradient(each) for each in parameters]
            move(values, gradients, [moment[name] for moment in self.moments.values() for name in names], lr)

    def _fused(self, values: Tensors, gradients: Tensors, momenta: Tensors, lr: float) -> None:
        torch._fused_sgd_(
            values,
            gradients,
            momenta,
            weight_decay=self._weight_decay,
            momentum=self._spec.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self._spec.nesterov,
            maximize=False,
            is_first_step=False,  # momenta begin at zero, which comes to the same
        )
        increment_version(momenta)

    def _foreach(self, values: Tensors, gradients: Tensors, momenta: Tensors, lr: float) -> None:
        if self._weight_decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self._weight_decay))
        directions = gradients
        if momenta:
            torch._foreach_mul_(momenta, self._spec.momentum)
            torch._foreach_add_(momenta, gradients)
            directions = momenta
        if self._spec.nesterov:
            directions = list(torch._foreach_add(gradients, momenta, alpha=self._spec.momentum))
        torch._foreach_add_(values, directions, alpha=-lr)
