"""One job by hand, with Lightning or with accelerate: run by path, it imports nothing of Headway.

    python benchmarks/job_peers.py bare|lightning|accelerate ROWS.npy OUT STEPS

The network is that of Headway's `tabular-classifier`, written once more; rows are in memory, drawn by a seeded
permutation. Each trains so many steps on one thread, and saves weights and the optimizer's state at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WIDTH, DEPTH, BATCH, CLASSES = 512, 4, 256, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def network(num_features: int) -> nn.Module:
    blocks = (Block() for _ in range(DEPTH))
    return nn.Sequential(
        nn.Linear(num_features, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


def batches(rows: np.ndarray, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Features (256, n) float32 and labels (256,) int64."""
    generator, order, at = np.random.default_rng(0), np.empty(0, np.int64), 0
    for _ in range(steps):
        if at + BATCH > len(order):
            order, at = generator.permutation(len(rows)), 0
        chosen = torch.from_numpy(rows[order[at : at + BATCH]])
        at += BATCH
        yield chosen[:, :-1], chosen[:, -1].long()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def bare(rows: np.ndarray, out: Path, steps: int) -> None:
    model = network(rows.shape[1] - 1)
    optimizer = optimizer_of(model)
    for features, labels in batches(rows, steps):
        loss = cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, out / "checkpoint.pt")


def with_accelerate(rows: np.ndarray, out: Path, steps: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(rows.shape[1] - 1)
    model, optimizer = accelerator.prepare(model, optimizer_of(model))
    for features, labels in batches(rows, steps):
        loss = cross_entropy(model(features), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    accelerator.save_state(str(out))


def with_lightning(rows: np.ndarray, out: Path, steps: int) -> None:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = network(rows.shape[1] - 1)

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self)

    class Batches(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return batches(rows, steps)

    # With what it does by itself but its bar, which is for people.
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        gradient_clip_val=1.0,
        default_root_dir=out,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Batches(), batch_size=None))


KINDS = {"bare": bare, "lightning": with_lightning, "accelerate": with_accelerate}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    started_s = time.process_time()
    KINDS[sys.argv[1]](np.load(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    print(time.process_time() - started_s)
