"""How many training steps a search takes to the same loss: a grid, random draws, Optuna's own pruner, and ours by each
sampler.

`python -m benchmarks.search [--task digits|breast-cancer|text] [--seeds N] [--steps N] [--json]`

Settings, rungs and promotions are those that `headway trials` uses; runs are in this process, so that steps are counted
and nothing waits. Optuna's pruner stops a trial for ever, or lets it go on; ours pauses it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.figures import Figure, show
from benchmarks.search_tasks import DIVERGED, LR, MOMENTUM, TASKS, WIDTH, Data, Run, Task
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.proposals import PastTrial, next_round, prospects
from headway.tasks.search.rungs import RungScore, levels, num_promoted, promoted
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.tasks.search.values import Settings
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec

TRIALS_PER_ROUND, ROUNDS, PRUNED_TRIALS = 9, 9, 54


@dataclass
class Search:
    """Runs by their settings; every step that is made is counted."""

    task: Task
    seed: int
    max_steps: int
    data: Data
    runs: dict[str, Run] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: int = 0
    course: list[tuple[int, float]] = field(default_factory=list)
    """Steps so far, and the best of the runs that have come to their ends."""
    proposing_s: float = 0.0

    def score(self, settings: Settings, step: int) -> float:
        key = json.dumps(settings, sort_keys=True)
        run = self.runs.setdefault(key, self.task.run(settings, self.seed, self.data, self.max_steps))
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
        undisturbed = self.task.run(json.loads(key), self.seed, self.data, self.max_steps)
        undisturbed.train(self.max_steps)
        assert undisturbed.digest() == self.runs[key].digest(), "the winner is not the run"


def grid(search: Search) -> None:
    for settings in search.task.grid_settings():
        search.score(settings, search.max_steps)


def halving(method: str) -> Callable[[Search], None]:
    def run(search: Search) -> None:
        first = max(1, search.max_steps // 27)
        spec = TrialsSpec.model_validate(
            {
                **{
                    "vary": search.task.vary,
                    "search": method,
                    "draws": TRIALS_PER_ROUND,
                    "rounds": ROUNDS,
                    "max_trials": 1000,
                },
                **{"rungs": {"first": first, "eta": 3}, "seed": search.seed},
            }
        )
        training = TrainingSpec.model_validate(
            {
                **{"recipe": {"model": {"width": 32}}, "max_steps": search.max_steps},
                "schedule": {"warmup_steps": 0},
            }
        )
        base = Configuration(training=training, shards=ShardSpec())
        steps, records = levels(spec.rungs, search.max_steps), list[PastTrial]()
        for number in range(ROUNDS):
            began_s = time.perf_counter()
            trials = next_round(spec, base, number, records, search.max_steps)
            search.proposing_s += time.perf_counter() - began_s
            records += run_round(search, spec, records, trials, steps)

    return run


def run_round(
    search: Search, spec: TrialsSpec, before: Sequence[PastTrial], trials: Sequence[Trial], steps: Sequence[int]
) -> list[PastTrial]:
    values: dict[int, dict[int, float]] = {trial.number: {} for trial in trials}
    on = {trial.number: trial for trial in trials}
    for place, step in enumerate(steps):
        for number, trial in on.items():
            values[number][step] = search.score(trial.settings, step)
        records = [PastTrial(trial=trial, values=values[trial.number]) for trial in trials]
        if place + 1 < len(steps):
            began_s = time.perf_counter()
            at_rung = {number: values[number][step] for number in on}
            standing = prospects(spec, [*before, *records], at_rung, search.max_steps)
            search.proposing_s += time.perf_counter() - began_s
            scores = [RungScore(number=number, value=value) for number, value in standing.items()]
            going_on, _ = promoted(scores, num_promoted(len(on), step, steps[place + 1]))
            on = {number: on[number] for number in going_on}
    return records


def pruned_by_optuna(search: Search) -> None:
    """Its own way: trials one after the other, each stopped for ever or let go on."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    first = max(1, search.max_steps // 27)
    rungs = levels((first, 3 * first, 9 * first), search.max_steps)

    vary = search.task.vary

    def objective(trial: optuna.Trial) -> float:
        settings: Settings = {
            LR: trial.suggest_float(LR, *vary[LR]["log_uniform"], log=True),
            MOMENTUM: trial.suggest_categorical(MOMENTUM, vary[MOMENTUM]),
            WIDTH: trial.suggest_categorical(WIDTH, vary[WIDTH]),
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
    "gp, rungs": halving("gp"),
    OURS: halving("tpe"),
}


def deviation_of_a_seed(found: Search) -> float:
    """What another seed of weights and order moves the losses of the best nine by."""
    best = sorted(found.values, key=lambda key: found.values[key][found.max_steps])[:9]
    other = Search(found.task, found.seed + 100, found.max_steps, found.data)
    moved = [found.values[key][found.max_steps] - other.score(json.loads(key), found.max_steps) for key in best]
    return float(np.std(moved) / 2**0.5)


def figures(task: Task, num_seeds: int, max_steps: int) -> list[Figure]:
    shares: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    gaps: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    until: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    proposing_ms: list[float] = []
    for seed in range(num_seeds):
        data, found = task.data(seed), dict[str, Search]()
        for name, run in CONTENDERS.items():
            found[name] = Search(task, seed, max_steps, data)
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
    return [
        *made,
        Figure(name="ours: proposing and choosing, a trial", value=statistics.median(proposing_ms), unit="ms"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=270, help="of a whole run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # two are slower on networks of this size
    found = figures(TASKS[arguments.task], arguments.seeds, arguments.steps)
    title = f"steps of a search, {arguments.task}, {arguments.seeds} seeds"
    show(found, title=title, as_json=arguments.json, libraries=("numpy", "optuna", "torch"))


if __name__ == "__main__":
    main()
