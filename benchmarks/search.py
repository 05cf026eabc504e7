"""How many training steps a search takes to the same loss: a grid, random draws, Optuna's own pruner, and ours.

`python -m benchmarks.search [--seeds N] [--steps N] [--json]`

A small network on handwritten digits, a tenth of whose training labels are wrong, in three settings; half of the
held-out rows rank. Settings, rungs and promotions are those that `headway trials` uses; runs are played, so that steps
are counted and nothing waits. Optuna's pruner stops a trial for ever, or lets it go on; ours pauses it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, show
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.rungs import RungScore, levels, num_promoted, promoted
from headway.tasks.search.trials_spec import Settings, Trial, TrialsSpec
from headway.training.config.training_spec import TrainingSpec

Array = NDArray[np.float32]
Part = tuple[Array, NDArray[np.int64]]

LR, MOMENTUM, WIDTH = "optimizer.lr", "optimizer.momentum", "recipe.model.width"
GRID_LRS = np.geomspace(1e-3, 3.0, 6).tolist()
VARY: dict[str, Any] = {LR: {"log_uniform": [1e-3, 3.0]}, MOMENTUM: [0.0, 0.9], WIDTH: [8, 32, 96]}
TRIALS_PER_ROUND, ROUNDS, PRUNED_TRIALS = 9, 9, 54
BATCH = 32
DIVERGED = 20.0


class Run:
    """Keyed by all that decides its weights, the length of its schedule included; where it pauses is none of it."""

    def __init__(self, settings: Settings, seed: int, data: dict[str, Part], max_steps: int) -> None:
        self._lr, self._momentum, width = (settings[name] for name in (LR, MOMENTUM, WIDTH))
        self._seed, self._data, self._max_steps, self.step = seed, data, max_steps, 0
        assert isinstance(width, int)
        draw = np.random.default_rng([seed, width])
        shapes = ((64, width), (1, width), (width, 10), (1, 10))
        self.weights = [draw.normal(0, a**-0.5 * (a > 1), (a, b)).astype(np.float32) for a, b in shapes]
        self._moments = [np.zeros_like(each) for each in self.weights]

    def train(self, until: int) -> int:
        """From where it is; returns how many steps were made."""
        x, y = self._data["train"]
        begun = self.step
        while self.step < until:
            rows = np.random.default_rng([self._seed, self.step]).integers(0, len(x), BATCH)
            rate = float(self._lr or 0) * min(1.0, (self._max_steps - self.step) / self._max_steps / 0.4)
            with np.errstate(all="ignore"):
                gradients = self._gradients(x[rows], y[rows])
                for weight, moment, gradient in zip(self.weights, self._moments, gradients, strict=True):
                    moment *= float(self._momentum or 0)
                    moment += gradient
                    weight -= rate * moment
            self.step += 1
        return self.step - begun

    def _gradients(self, x: Array, y: NDArray[np.int64]) -> tuple[Array, ...]:
        hidden, share = self._forward(x)
        share[np.arange(len(y)), y] -= 1
        share /= len(y)
        back = (share @ self.weights[2].T) * (hidden > 0)
        return x.T @ back, back.sum(0, keepdims=True), hidden.T @ share, share.sum(0, keepdims=True)

    def _forward(self, x: Array) -> tuple[Array, Array]:
        hidden = np.maximum(x @ self.weights[0] + self.weights[1], 0)
        logits = hidden @ self.weights[2] + self.weights[3]
        share = np.exp(logits - logits.max(1, keepdims=True))
        return hidden, share / share.sum(1, keepdims=True)

    def loss(self) -> float:
        x, y = self._data["rank"]
        with np.errstate(all="ignore"):
            value = -np.log(self._forward(x)[1][np.arange(len(y)), y] + 1e-9).mean()
        return float(value) if np.isfinite(value) else DIVERGED

    def digest(self) -> str:
        return hashlib.sha256(b"".join(each.tobytes() for each in self.weights)).hexdigest()


def digits(seed: int) -> dict[str, Part]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(y))
    x, y = (x[order] / 8 - 1).astype(np.float32), y[order].copy()
    wrong = draw.random(len(y)) < 0.1
    wrong[897:] = False
    y[wrong] = draw.integers(0, 10, wrong.sum())
    return {"train": (x[:897], y[:897]), "rank": (x[897:1347], y[897:1347])}


@dataclass
class Search:
    """Runs by their settings; every step that is made is counted."""

    seed: int
    max_steps: int
    data: dict[str, Part]
    runs: dict[str, Run] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: int = 0
    course: list[tuple[int, float]] = field(default_factory=list)
    """Steps so far, and the best of the runs that have come to their ends."""
    proposing_s: float = 0.0

    def score(self, settings: Settings, step: int) -> float:
        key = json.dumps(settings, sort_keys=True)
        run = self.runs.setdefault(key, Run(settings, self.seed, self.data, self.max_steps))
        assert run.step <= step, "a step would be trained twice"
        self.steps += run.train(step)
        self.values.setdefault(key, {})[step] = run.loss()
        if step == self.max_steps:
            self.course.append((self.steps, self.best[0]))
        return self.values[key][step]

    @property
    def best(self) -> tuple[float, str]:
        return min((at[self.max_steps], key) for key, at in self.values.items() if self.max_steps in at)

    def steps_to(self, loss: float) -> float:
        return min((steps for steps, best in self.course if best <= loss), default=float("inf"))

    def check(self) -> None:
        assert self.steps == sum(max(at) for at in self.values.values())
        key = self.best[1]
        undisturbed = Run(json.loads(key), self.seed, self.data, self.max_steps)
        undisturbed.train(self.max_steps)
        assert undisturbed.digest() == self.runs[key].digest(), "the winner is not the run"


def grid(search: Search) -> None:
    for settings in grid_settings():
        search.score(settings, search.max_steps)


def grid_settings() -> list[Settings]:
    return [dict(zip(VARY, each, strict=True)) for each in itertools.product(GRID_LRS, VARY[MOMENTUM], VARY[WIDTH])]


def halving(method: str) -> Callable[[Search], None]:
    def run(search: Search) -> None:
        first = max(1, search.max_steps // 27)
        spec = TrialsSpec.model_validate(
            {
                **{"vary": VARY, "search": method, "draws": TRIALS_PER_ROUND, "rounds": ROUNDS, "max_trials": 1000},
                **{"rungs": {"first": first, "eta": 3}, "seed": search.seed},
            }
        )
        training = TrainingSpec.model_validate(
            {
                **{"recipe": {"model": {"width": 32}}, "max_steps": search.max_steps},
                "schedule": {"warmup_steps": 0},
            }
        )
        steps, records = levels(spec.rungs, search.max_steps), list[PastTrial]()
        for number in range(ROUNDS):
            began_s = time.perf_counter()
            trials = next_round(spec, training, number, records, search.max_steps)
            search.proposing_s += time.perf_counter() - began_s
            records += run_round(search, trials, steps)

    return run


def run_round(search: Search, trials: Sequence[Trial], steps: Sequence[int]) -> list[PastTrial]:
    values: dict[int, dict[int, float]] = {trial.number: {} for trial in trials}
    on = {trial.number: trial for trial in trials}
    for place, step in enumerate(steps):
        for number, trial in on.items():
            values[number][step] = search.score(trial.settings, step)
        if place + 1 < len(steps):
            scores = [RungScore(number=number, value=values[number][step]) for number in on]
            going_on, _ = promoted(scores, num_promoted(len(on), step, steps[place + 1]))
            on = {number: on[number] for number in going_on}
    return [PastTrial(trial=trial, values=values[trial.number]) for trial in trials]


def pruned_by_optuna(search: Search) -> None:
    """Its own way: trials one after the other, each stopped for ever or let go on."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    first = max(1, search.max_steps // 27)
    rungs = levels((first, 3 * first, 9 * first), search.max_steps)

    def objective(trial: optuna.Trial) -> float:
        settings: Settings = {
            LR: trial.suggest_float(LR, 1e-3, 3.0, log=True),
            MOMENTUM: trial.suggest_categorical(MOMENTUM, VARY[MOMENTUM]),
            WIDTH: trial.suggest_categorical(WIDTH, VARY[WIDTH]),
        }
        loss = DIVERGED
        for step in rungs:
            trial.report(loss := search.score(settings, step), step)
            if step < search.max_steps and trial.should_prune():
                raise optuna.TrialPruned
        return loss

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=3)
    sampler = optuna.samplers.TPESampler(seed=search.seed)
    optuna.create_study(sampler=sampler, pruner=pruner).optimize(objective, n_trials=PRUNED_TRIALS)


GRID, OURS = "grid", "ours (tpe, rungs)"
CONTENDERS: dict[str, Callable[[Search], None]] = {
    GRID: grid,
    "random draws, rungs": halving("random"),
    "optuna's pruner (tpe)": pruned_by_optuna,
    OURS: halving("tpe"),
}


def deviation_of_a_seed(found: Search) -> float:
    """What another seed of weights and order moves the losses of the best nine by."""
    best = sorted(found.values, key=lambda key: found.values[key][found.max_steps])[:9]
    other = Search(found.seed + 100, found.max_steps, found.data)
    moved = [found.values[key][found.max_steps] - other.score(json.loads(key), found.max_steps) for key in best]
    return float(np.std(moved) / 2**0.5)


def figures(num_seeds: int, max_steps: int) -> list[Figure]:
    shares: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    gaps: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    until: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    proposing_ms: list[float] = []
    for seed in range(num_seeds):
        data, found = digits(seed), dict[str, Search]()
        for name, run in CONTENDERS.items():
            found[name] = Search(seed, max_steps, data)
            run(found[name])
            found[name].check()
        near = found[GRID].best[0] + deviation_of_a_seed(found[GRID])
        for name, search in found.items():
            shares[name].append(search.steps / found[GRID].steps)
            gaps[name].append(search.best[0] - found[GRID].best[0])
            until[name].append(search.steps_to(near) / found[GRID].steps)
        proposing_ms.append(1e3 * found[OURS].proposing_s / (TRIALS_PER_ROUND * ROUNDS))
    made = [Figure(name="grid: steps", value=36 * max_steps, unit="steps")]
    for name in CONTENDERS:
        is_ours = name == OURS
        reached = [each for each in until[name] if np.isfinite(each)]
        made += (
            []
            if name == GRID
            else [
                Figure(
                    name=f"{name}: steps",
                    value=statistics.median(shares[name]),
                    ratio_to="grid: steps",
                    target="<= 0.4" if is_ours else "",
                ),
                Figure(name=f"{name}: best loss less the grid's, mean", value=statistics.mean(gaps[name]), unit="nats"),
                Figure(
                    name=f"{name}: seeds within one seed's deviation of the grid's best",
                    value=len(reached) / num_seeds,
                    unit="share",
                    target=">= 0.8" if is_ours else "",
                ),
            ]
        )
        if reached:
            value = statistics.median(reached)
            made.append(Figure(name=f"{name}: steps until then", value=value, ratio_to="grid: steps"))
    return [*made, Figure(name="ours: proposing a trial", value=statistics.median(proposing_ms), unit="ms")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=270, help="of a whole run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = figures(arguments.seeds, arguments.steps)
    title = f"steps of a search, {arguments.seeds} seeds"
    show(found, title=title, as_json=arguments.json, libraries=("numpy", "optuna"))


if __name__ == "__main__":
    main()
