"""What one optimizer step costs beside torch's own fused one, on the same tensors.

`python -m benchmarks.optimizer [--blocks N] [--width N] [--threads N] [--rounds N] [--json]`

The tensors are those of a transformer. Optimizers take turns, so that a noisy neighbour meets them all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import nn

from benchmarks.figures import Figure, show
from headway.training.config.optimizer import OptimizerSpec
from headway.training.optimizers.elementwise import SGD, AdamW

PEER = "torch.optim.AdamW(fused)"


def parameters(blocks: int, width: int) -> dict[str, nn.Parameter]:
    shapes = ((3 * width, width), (width, width), (8 * width, width), (width, 4 * width), (width,), (width,))
    torch.manual_seed(0)
    made = {f"{block}.{index}": torch.randn(shape) for block in range(blocks) for index, shape in enumerate(shapes)}
    found = {name: nn.Parameter(value) for name, value in made.items()}
    for parameter in found.values():
        parameter.grad = torch.randn_like(parameter)
    return found


def contenders(blocks: int, width: int) -> dict[str, Callable[[], object]]:
    """A step of each, on tensors of its own."""

    def adamw(implementation: str) -> Callable[[], object]:
        spec = OptimizerSpec.model_validate({"kind": "adamw", "implementation": implementation})
        rule = AdamW(parameters(blocks, width), spec, weight_decay=0.1)
        return lambda: rule.update(1e-3, 10)

    sgd = SGD(parameters(blocks, width), OptimizerSpec(kind="sgd"), weight_decay=0.1)
    own = torch.optim.AdamW(parameters(blocks, width).values(), lr=1e-3, weight_decay=0.1, fused=True)
    return {
        PEER: own.step,
        "adamw fused": adamw("fused"),
        "adamw foreach": adamw("foreach"),
        "sgd fused": lambda: sgd.update(1e-3, 10),
    }


def interleaved(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step, round by round; a first one of each is not counted."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            started_s = time.perf_counter()
            step()
            if number:
                found[name].append(time.perf_counter() - started_s)
    return found


def figures(found: Mapping[str, list[float]]) -> list[Figure]:
    """Medians, and medians of the ratios taken round by round."""
    peer = found[PEER]
    made = [Figure(name=PEER, value=1e3 * statistics.median(peer), unit="ms")]
    for name, times_s in found.items():
        if name != PEER:
            ratio = statistics.median(own / its for own, its in zip(times_s, peer, strict=True))
            target = "<= 1.05" if name == "adamw fused" else ""
            made.append(Figure(name=name, value=ratio, ratio_to=PEER, target=target))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("blocks", 4), ("width", 256), ("threads", 1), ("rounds", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = interleaved(contenders(arguments.blocks, arguments.width), arguments.rounds)
    show(figures(found), title="An optimizer step", as_json=arguments.json, libraries=("torch",))


if __name__ == "__main__":
    main()
