"""What a training step costs with everything on, against a hand-written loop on the same batches.

    python -m benchmarks.step [--small] [--json] [--rounds 24] [--steps 2] [--save-steps 50] [--save-rounds 3]

Everything: loader, guards with the spike detector, telemetry, ledger, stop conditions; in the second figure checkpoints
too. The bare loop has its batches in memory beforehand and does what anybody would write: forward, backward, clip,
fused AdamW. One process, turn about in short slices, so that a noisy neighbour meets both; medians of slices.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.figures import Figure, show
from benchmarks.loader_data import Task, make
from headway.data_contracts.store.documents import Link, PayloadColumn
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.proof import fingerprint, proof_loss
from headway.training.checkpoint.save import Checkpointer
from headway.training.config.guards import GuardSpec, SpikePolicy
from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import RankBatches, StepBatches, prefetched, proof_batch
from headway.training.engine.learner import Learner
from headway.training.engine.loop import train
from headway.training.engine.step_recorder import StepRecorder
from headway.training.evaluation.validation import Validation
from headway.training.guards.step_guard import StepGuard
from headway.training.guards.stop import StopConditions
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.node.rank_process import RankProcess
from headway.training.ranks.distributed import ProcessGroup, choose_device, enable_determinism
from headway.training.ranks.utilisation import flops_per_token, parameters_of, peak_flops_per_s
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Recipe

VOCABULARY, CONTEXT = 2000, 128
ROWS = Task("tokens", (PayloadColumn(name="tokens", dtype="uint16", shape=(CONTEXT + 1,)),), 32_768, 8, 1024, 16_384)
CPU_MODEL = {"width": 128, "depth": 4, "heads": 4, "hidden": 352}
SMALL_MODEL = {"width": 48, "depth": 2, "heads": 2, "hidden": 128}
SMALL_ROWS = 2
"""A step of less than 20 ms on a core: what a step costs beside its arithmetic shows."""
CUDA_MODEL = {"width": 1024, "depth": 12, "heads": 16, "hidden": 2816}
MAX_STEPS = 1 << 20
Contender = Callable[[int], None]
"""Trains so many steps, going on where it stopped."""


def spec_for(device: torch.device, *, is_small: bool = False) -> TrainingSpec:
    on_cuda = device.type == "cuda"
    small = {"global_batch_sequences": SMALL_ROWS, "micro_batch_sequences": SMALL_ROWS // 2} if is_small else {}
    spec = TrainingSpec(
        recipe=RecipeSpec(model=SMALL_MODEL if is_small else CUDA_MODEL if on_cuda else CPU_MODEL),
        optimizer=OptimizerSpec(kind="adamw", lr=1e-3),
        guards=GuardSpec(spike=SpikePolicy(action="skip", budget=1000)),
        max_steps=MAX_STEPS,
        global_batch_sequences=256 if on_cuda else 8,
        micro_batch_sequences=64 if on_cuda else 4,
        precision="bf16" if on_cuda else "fp32",
    )
    return spec.model_copy(update=small)


class Bare:
    """The loop that a person writes for one model and one machine."""

    def __init__(self, recipe: Recipe, spec: TrainingSpec, batches: list[StepBatches], device: torch.device) -> None:
        torch.manual_seed(0)
        self._recipe, self._batches, self._done = recipe, batches, 0
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bf16")
        self.model = recipe.build().to(device).train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=spec.optimizer.lr, fused=True)
        self.losses: list[float] = []

    def __call__(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._optimizer.zero_grad(set_to_none=True)
            nats, valid = [], []
            for batch in self._batches[self._done % len(self._batches)]:
                with self._autocast:
                    losses = self._recipe.losses(self.model, batch)
                total = losses.nats.sum()
                total.backward()  # type: ignore[no-untyped-call]
                nats.append(total.detach())
                valid.append(losses.valid.sum())
            num_tokens = int(torch.stack(valid).sum())
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(num_tokens)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self.losses.append(float(torch.stack(nats).sum()) / num_tokens)
            self._done += 1


class Everything:
    """Headway's loop as `headway.training.programs.session` runs it.

    Args:
        save_every_steps: None for no checkpoints.
    """

    def __init__(
        self,
        recipe: Recipe,
        spec: TrainingSpec,
        reader: ShardReader,
        process_group: ProcessGroup,
        folder: Path,
        stack: contextlib.ExitStack,
        save_every_steps: int | None = None,
    ) -> None:
        folder.mkdir()
        self._rank, self._spec, self._recipe, self._process_group = (
            RankProcess(folder / "attempt"),
            spec,
            recipe,
            process_group,
        )
        self._learner, self._guard = Learner(recipe, spec, process_group), StepGuard(spec.guards)
        self._recorder = StepRecorder(self._rank, recipe, spec, process_group, self._learner)
        ledger = self._rank.ledger
        self._validation = Validation(None, self._learner, None, process_group, ledger, max_steps=MAX_STEPS)
        self._stop = StopConditions(lambda: self._rank.stop_requested, StopRequest())
        self._proof_batch = proof_batch(reader, spec, process_group.device)
        self._checkpointer = stack.enter_context(Checkpointer(folder, process_group))
        batches = RankBatches(reader, spec, share=self._learner.share, device=process_group.device)
        made = stack.enter_context(prefetched(batches, LoaderSpec(), start=0, stop=MAX_STEPS))
        self._steps: Iterator[tuple[int, int, StepBatches]] = (
            (window, spec.num_replicas, batches) for window, batches in enumerate(made)
        )
        self._save_every_steps, self._done = save_every_steps, 0

    def __call__(self, num_steps: int) -> None:
        train(
            self._learner,
            self._steps,
            self._guard,
            self._validation,
            first_step=self._done,
            max_steps=self._done + num_steps,
            stop_is_due=self._stop,
            ends_with=self._stop.ends_with,
            save_is_due=lambda step: self._save_every_steps is not None and step % self._save_every_steps == 0,
            on_step=self._recorder,
            on_step_apart=lambda _done: None,
            save=self._save,
            before_update=self._checkpointer.finish_staging,
        )
        self._done += num_steps

    def _save(self, step: int) -> None:
        if self._save_every_steps is None or step % self._save_every_steps:
            return
        self._checkpointer.save(
            Content(
                run=Link(kind="run", sha256="0" * 64),
                step=step,
                num_samples=step * self._spec.global_batch_sequences,
                tensors=self._learner.weights(),
                moments=self._learner.moments(),
                scalars={"guard": self._guard.state(), **self._learner.scalars()},
                proof_batch=self._proof_batch,
                proof_loss=proof_loss(self._recipe, self._learner.model, self._proof_batch),
                fingerprint=fingerprint(self._process_group.device),
            )
        )


class Spent(NamedTuple):
    """Seconds a step."""

    wall_s: float
    cpu_s: float
    """Of all threads: what a busy neighbour does not change."""


def spent(contender: Contender, num_steps: int, device: torch.device) -> Spent:
    started_s, began_cpu_s = time.perf_counter(), time.process_time()
    contender(num_steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return Spent((time.perf_counter() - started_s) / num_steps, (time.process_time() - began_cpu_s) / num_steps)


class Rounds(NamedTuple):
    bare: list[Spent]
    ours: list[Spent]

    def wall_ratio(self) -> float:
        return statistics.median(ours.wall_s / bare.wall_s for bare, ours in zip(*self, strict=True))

    def cpu_ratio(self) -> float:
        return statistics.median(ours.cpu_s / bare.cpu_s for bare, ours in zip(*self, strict=True))


def turn_about(bare: Contender, ours: Contender, num_steps: int, rounds: int, device: torch.device) -> Rounds:
    """Each begins half of the rounds."""
    took = Rounds([], [])
    for number in range(rounds):
        pair = ((bare, took.bare), (ours, took.ours))
        for contender, times in pair if number % 2 == 0 else pair[::-1]:
            times.append(spent(contender, num_steps, device))
    return took


def measure(rounds: int, steps: int, save_rounds: int, save_steps: int, *, is_small: bool = False) -> list[Figure]:
    device = choose_device()
    process_group = ProcessGroup(rank=0, world_size=1, device=device)
    spec = spec_for(device, is_small=is_small)
    enable_determinism(spec.num_threads)
    recipe = load_recipe("language-model", spec.recipe.model, TokenShape(vocab_size=VOCABULARY, context_tokens=CONTEXT))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        made = make(ROWS, 1, folder)
        reader = ShardReader(made.workspace, made.manifest, TRAIN)
        produce = RankBatches(reader, spec, share=Learner(recipe, spec, process_group).share, device=device)
        batches = [produce(step) for step in range(64)]
        bare = Bare(recipe, spec, batches, device)
        plain = Everything(recipe, spec, reader, process_group, folder / "plain", stack)
        saving = Everything(recipe, spec, reader, process_group, folder / "saving", stack, save_every_steps=save_steps)
        for contender in (bare, plain, saving):
            contender(3)
        saving(save_steps - 3)  # so that each slice from here on begins with a checkpoint that is written behind it
        took = turn_about(bare, plain, steps, rounds, device)
        saved = turn_about(bare, saving, save_steps, save_rounds, device)
    bare_s, plain_s = (statistics.median(each.wall_s for each in times) for times in took)
    tokens = spec.global_batch_sequences * CONTEXT
    # Of small steps fifty are less than a second, in which nobody saves.
    target, of_saves = ("<= 1.05", "") if is_small else ("<= 1.02", "<= 1.05")
    with_saves = f"step, a checkpoint every {save_steps}"
    figures = [
        Figure(name="bare step", value=1000 * bare_s, unit="ms"),
        Figure(name="step with everything on", value=1000 * plain_s, unit="ms"),
        Figure(name="step, no saves", value=took.wall_ratio(), ratio_to="bare loop", target=target),
        Figure(name="step, no saves: CPU seconds", value=took.cpu_ratio(), ratio_to="bare loop"),
        Figure(name=with_saves, value=saved.wall_ratio(), ratio_to="bare loop", target=of_saves),
        Figure(name=f"{with_saves}: CPU seconds", value=saved.cpu_ratio(), ratio_to="bare loop"),
        Figure(name="tokens a second", value=tokens / plain_s, unit="tokens/s"),
    ]
    peak, flops = peak_flops_per_s(device, spec.precision), flops_per_token(recipe, parameters_of(bare.model))
    if peak is not None:
        figures.append(Figure(name="model FLOPs utilisation", value=tokens / plain_s * flops / peak, ratio_to="peak"))
    assert math.isfinite(bare.losses[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--save-rounds", type=int, default=3)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--small", action="store_true", help="a step of less than 20 ms")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = measure(
        arguments.rounds, arguments.steps, arguments.save_rounds, arguments.save_steps, is_small=arguments.small
    )
    show(figures, title="Training step", as_json=arguments.json, libraries=("torch",))


if __name__ == "__main__":
    main()
