"""What a search is measured on: small networks in three settings, a twentieth of a second to some seconds a run.

A run is keyed by all that decides its weights, the length of its schedule included; where it pauses is none of it.
"""

from __future__ import annotations

import hashlib
import itertools
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headway.tasks.search.values import Settings
from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.config.shapes import TokenShape
from headway.training.recipes.language_model import LanguageModel

LR, MOMENTUM, WIDTH = "optimizer.lr", "optimizer.momentum", "recipe.model.width"
DIVERGED = 20.0
BATCH = 32
BATCH_SEQUENCES, CONTEXT_TOKENS = 16, 32
TEXT_BYTES, RANK_ROWS = 400_000, 256

Rows = tuple[NDArray[Any], NDArray[np.int64]]
Data = dict[str, Rows]


class Run(ABC):
    def __init__(self, settings: Settings, seed: int, data: Data, max_steps: int) -> None:
        self._lr, self._momentum = (float(str(settings[name])) for name in (LR, MOMENTUM))
        self._seed, self._data, self._max_steps, self.step = seed, data, max_steps, 0

    def train(self, until: int) -> int:
        """From where it is; returns how many steps were made."""
        x, y = self._data["train"]
        begun = self.step
        while self.step < until:
            rows = np.random.default_rng([self._seed, self.step]).integers(0, len(x), self.batch)
            self.make_step(x[rows], y[rows], self._lr * min(1.0, (1 - self.step / self._max_steps) / 0.4))
            self.step += 1
        return self.step - begun

    def loss(self) -> float:
        value = self.rank_loss(*self._data["rank"])
        return float(value) if np.isfinite(value) else DIVERGED

    def digest(self) -> str:
        return hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in self.tensors())).hexdigest()

    batch: int

    @abstractmethod
    def make_step(self, x: NDArray[Any], y: NDArray[np.int64], rate: float) -> None: ...

    @abstractmethod
    def rank_loss(self, x: NDArray[Any], y: NDArray[np.int64]) -> float: ...

    @abstractmethod
    def tensors(self) -> list[NDArray[Any]]: ...


class RowsRun(Run):
    """A hidden layer over rows of numbers, by stochastic gradient descent."""

    batch = BATCH

    def __init__(self, settings: Settings, seed: int, data: Data, max_steps: int) -> None:
        super().__init__(settings, seed, data, max_steps)
        x, y = data["train"]
        width = cast("int", settings[WIDTH])
        draw = np.random.default_rng([seed, width])
        shapes = ((x.shape[1], width), (1, width), (width, int(y.max()) + 1), (1, int(y.max()) + 1))
        self.weights = [draw.normal(0, a**-0.5 * (a > 1), (a, b)).astype(np.float32) for a, b in shapes]
        self._moments = [np.zeros_like(each) for each in self.weights]

    def make_step(self, x: NDArray[Any], y: NDArray[np.int64], rate: float) -> None:
        with np.errstate(all="ignore"):
            hidden, share = self._forward(x)
            share[np.arange(len(y)), y] -= 1
            share /= len(y)
            back = (share @ self.weights[2].T) * (hidden > 0)
            gradients = x.T @ back, back.sum(0, keepdims=True), hidden.T @ share, share.sum(0, keepdims=True)
            for weight, moment, gradient in zip(self.weights, self._moments, gradients, strict=True):
                moment *= self._momentum
                moment += gradient
                weight -= rate * moment

    def _forward(self, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        hidden = np.maximum(x @ self.weights[0] + self.weights[1], 0)
        logits = hidden @ self.weights[2] + self.weights[3]
        share = np.exp(logits - logits.max(1, keepdims=True))
        return hidden, share / share.sum(1, keepdims=True)

    def rank_loss(self, x: NDArray[Any], y: NDArray[np.int64]) -> float:
        with np.errstate(all="ignore"):
            return float(-np.log(self._forward(x)[1][np.arange(len(y)), y] + 1e-9).mean())

    def tensors(self) -> list[NDArray[Any]]:
        return self.weights


class TextRun(Run):
    """The shipped language model, a block deep, by AdamW; the momentum is its first beta."""

    batch = BATCH_SEQUENCES

    def __init__(self, settings: Settings, seed: int, data: Data, max_steps: int) -> None:
        super().__init__(settings, seed, data, max_steps)
        width = cast("int", settings[WIDTH])
        shape = TokenShape(vocab_size=256, context_tokens=CONTEXT_TOKENS)
        self._recipe = LanguageModel(LanguageModelSpec(width=width, depth=1, hidden=2 * width), shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = self._recipe.build()
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=self._lr, betas=(self._momentum, 0.95))

    def make_step(self, x: NDArray[Any], y: NDArray[np.int64], rate: float) -> None:
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.zero_grad()
        self._nats(x).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def _nats(self, tokens: NDArray[Any]) -> torch.Tensor:
        losses = self._recipe.losses(self._model, {"tokens": torch.from_numpy(tokens.astype(np.int64))})
        return losses.nats.sum() / losses.valid.sum()

    def rank_loss(self, x: NDArray[Any], y: NDArray[np.int64]) -> float:
        with torch.no_grad():
            return float(self._nats(x))

    def tensors(self) -> list[NDArray[Any]]:
        return [each.detach().numpy() for each in self._model.parameters()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    name: str
    data: Callable[[int], Data]
    """By a seed that says which rows train, and which rank."""
    run: type[Run]
    vary: dict[str, Any]
    grid_lrs: tuple[float, ...]

    def grid_settings(self) -> list[Settings]:
        settings = itertools.product(self.grid_lrs, self.vary[MOMENTUM], self.vary[WIDTH])
        return [dict(zip((LR, MOMENTUM, WIDTH), each, strict=True)) for each in settings]


def _task(name: str, data: Callable[[int], Data], run: type[Run], lrs: tuple[float, float], **lists: Any) -> Task:
    vary = {LR: {"log_uniform": lrs}, MOMENTUM: lists["momenta"], WIDTH: lists["widths"]}
    return Task(name=name, data=data, run=run, vary=vary, grid_lrs=tuple(np.geomspace(*lrs, 6).tolist()))


def _digits(seed: int) -> Data:
    """With a tenth of the training labels wrong."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(y))
    x, y = (x[order] / 8 - 1).astype(np.float32), y[order].copy()
    wrong = draw.random(len(y)) < 0.1
    wrong[897:] = False
    y[wrong] = draw.integers(0, 10, wrong.sum())
    return {"train": (x[:897], y[:897]), "rank": (x[897:1347], y[897:1347])}


def _breast_cancer(seed: int) -> Data:
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order]
    x = (x - x[:285].mean(0)) / x[:285].std(0)
    return {"train": (x[:285], y[:285]), "rank": (x[285:427], y[285:427])}


def _text(seed: int) -> Data:
    """Bytes of Python's own library, files of which either train or rank."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    np.random.default_rng(seed).shuffle(files)
    text = np.frombuffer(b"".join(path.read_bytes() for path in files)[: 2 * TEXT_BYTES], dtype=np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT_TOKENS + 1)[:: CONTEXT_TOKENS // 2]
    half = len(rows) // 2
    none = np.zeros(len(rows), dtype=np.int64)
    rank = rows[half + 2 :: len(rows) // 2 // RANK_ROWS][:RANK_ROWS]
    return {"train": (rows[:half], none[:half]), "rank": (rank, none[: len(rank)])}


ROWS = {"momenta": [0.0, 0.9], "widths": [8, 32, 96]}
TASKS = {
    task.name: task
    for task in (
        _task("digits", _digits, RowsRun, (1e-3, 3.0), **ROWS),
        _task("breast-cancer", _breast_cancer, RowsRun, (1e-3, 3.0), **ROWS),
        _task("text", _text, TextRun, (1e-4, 0.3), momenta=[0.0, 0.9], widths=[16, 32, 64]),
    )
}
