"""How a search goes through its rounds and rungs; training and scoring are played."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.data_contracts.store.documents import Interval, Link
from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError, TrainingFailed
from headway.tasks.search.budget import SearchBudget, TrialProgress, Worked, spent_by
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.rungs import planned_steps
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.tasks.stages import search as module
from headway.tasks.stages import trial_shards
from headway.tasks.stages.finalists import Finalist, FinalistsVerdict
from headway.tasks.stages.trial_scores import PlannedTrial, Scoring, TrialResult, TrialScore
from headway.training.checkpoint.layout import run_folder
from headway.training.config.optimizer import ScheduleSpec
from headway.training.config.recipe_specs import GRADIENT_BOOSTING
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

pytest.importorskip("optuna")  # now: its import is no test's work
TRAINING = TrainingSpec(max_steps=540)
BASE = Configuration(training=TRAINING, shards=ShardSpec())
LEVELS = (60, 180, 540)
NUM_ROWS = 540 * TRAINING.global_batch_sequences
SHA256 = "0" * 64


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Machine:
    """Trains and scores as stages do: what is on record is found. It dies where it is told to."""

    loss: Any
    fails_at: dict[int, int] = field(default_factory=dict)
    """By trial, the step at which it diverges."""
    failure: Callable[..., HeadwayError] = field(default=partial(TrainingFailed, "its loss is no number."))
    reached: dict[int, int] = field(default_factory=dict)
    """By trial: how far it is trained."""
    arrived: dict[tuple[int, int], int] = field(default_factory=dict)
    """By trial and rung: how far it was when it was first compared there."""
    is_queue: bool = False
    """Whether all are asked for before the first trains."""
    ends_at: int = 540
    """Where runs end, by converging."""
    num_keys: int = 0
    """Of the examples that rank."""
    trained: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By trial: steps made in all."""
    dies_in: int = -1
    events: list[dict[str, Any]] = field(default_factory=list)
    verdict: FinalistsVerdict | None = None
    compared: int = 0
    finalists: list[list[TrialResult]] = field(default_factory=list)
    require_trainable: Callable[..., None] = lambda *arguments: None
    clock_s: float = 0.0
    worked: dict[str, list[Worked]] = field(default_factory=lambda: defaultdict(list))
    """By run. A step takes a second, and a start ten."""
    flow_run: int = 0
    tracked: Any = field(default_factory=lambda: SimpleNamespace(log=lambda *arguments, **fields: None))

    def key(self, trial: Trial) -> Any:
        return trial.number if trial.seed is None else (trial.number, trial.seed)

    def _work(self) -> None:
        self.dies_in -= 1
        if self.dies_in == 0:
            raise Killed

    def describe(self, context: Any, trials: Any, manifest: Any, beside: Any = None) -> list[PlannedTrial]:
        run: Any = SimpleNamespace(run=SimpleNamespace(model_copy=lambda update: None))
        counted = [replace(each, training=each.training.for_rows(NUM_ROWS)) for each in trials]
        return [PlannedTrial(each, run, link_of(self.key(each))) for each in counted]

    def train(
        self,
        context: Any,
        planned: Any,
        spec: Any,
        uri: str,
        at_once: int,
        by: Any,
        to_step: int | None,
        room: Any,
        may_begin: Any = None,
    ) -> Any:
        results = []

        def begins(each: PlannedTrial) -> bool:
            is_trained = self.reached.get(self.key(each.trial), 0) >= min(to_step or 540, self.ends_at)
            return may_begin is None or is_trained or may_begin(each)

        for each in list(filter(begins, planned)) if self.is_queue else filter(begins, planned):
            number, step = self.key(each.trial), to_step or 540
            is_trained = self.reached.get(number, 0) >= min(step, self.ends_at)
            result = TrialResult(planned=each)
            if (limit := self.fails_at.get(number)) is not None and step >= limit:
                results.append(replace(result, error=self.failure(where=each.run.sha256)))
                continue
            self._work()
            step = min(step, self.ends_at)
            if not is_trained:
                began_s = self.clock_s
                self.clock_s += 10 + step - self.reached.get(number, 0)
                self.worked[run_folder(each.run)].append(Worked(str(self.flow_run), began_s, self.clock_s))
            self.trained[number] += max(0, step - self.reached.get(number, 0))
            self.reached[number] = max(step, self.reached.get(number, 0))
            results.append(result)
        return results

    def rank(self, context: Any, scoring: Any, results: Any, at: Any, like: Any) -> Any:
        scored = []
        for each in results:
            if each.error is None:
                self._work()
                value = self.loss(each.trial, at or 540)
                number = self.key(each.trial)
                link = Link(kind="checkpoint", sha256=each.run.sha256)
                score = TrialScore(
                    checkpoint=link,
                    metric="log_loss",
                    greater_is_better=False,
                    figure=Interval(value=value, low=value - 0.1, high=value + 0.1),
                    num_examples=9,
                    num_keys=self.num_keys,
                    examples_sha256=SHA256,
                )
                trained = self.arrived.setdefault((number, at or 540), self.reached[number])
                each = replace(
                    each,
                    checkpoint=link,
                    trained_step=trained,
                    model_step=trained,
                    is_finished=trained >= self.ends_at,
                    score=score,
                )
            scored.append(each)
        return sorted(scored, key=module.place)

    def compare(self, context: Any, scoring: Any, *finalists: Any) -> FinalistsVerdict | None:
        self.compared += 1
        self.finalists = [list(each) for each in finalists]
        return self.verdict

    def event(self, name: str, **fields: Any) -> None:
        self.events.append({"event": name, **fields})

    def progress_of(self, folder: str) -> TrialProgress:
        step = next((step for key, step in self.reached.items() if run_folder(link_of(key)) == folder), 0)
        return TrialProgress(step=step, is_finished=step >= self.ends_at, worked=tuple(self.worked[folder]))

    def search(
        self,
        spec: TrialsSpec,
        training: TrainingSpec = TRAINING,
        observe: Callable[[module.SearchResult], None] = lambda so_far: None,
    ) -> module.SearchResult:
        self.flow_run += 1
        self.clock_s += 1000.0  # since the flow run before
        context: Any = SimpleNamespace(
            ledger=SimpleNamespace(event=self.event),
            workspace=SimpleNamespace(local_path=Path, load=lambda *_: SimpleNamespace(snapshot=link_of(7))),
            pipeline="tiny",
            base=Path(),
        )
        nothing: Any = None
        launch: Any = SimpleNamespace(world_size=2, is_detached=True)
        shards = ShardSpec()
        scoring = Scoring(evaluation=nothing, launch=launch, shards=shards, source=nothing)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "describe_trials", self.describe)
            patch.setattr(module, "train_trials", self.train)
            patch.setattr(module, "rank_trials", self.rank)
            patch.setattr(module, "compare_finalists", self.compare)
            patch.setattr(module, "pace_of", lambda run_dir: None)
            patch.setattr(module, "TrackedSearch", lambda *arguments: self.tracked)
            patch.setattr(module, "num_training_rows", lambda context, manifest: NUM_ROWS)
            patch.setattr(module, "require_worthwhile", lambda *arguments: None)
            patch.setattr(trial_shards, "num_training_rows", lambda context, manifest: NUM_ROWS)
            patch.setattr(trial_shards, "require_trainable", self.require_trainable)
            budget = None if spec.budget is None else SearchBudget(spec.budget, self.progress_of, usd_per_s=0.01)
            return module.search(context, spec, training, scoring, nothing, "", budget=budget, observe=observe)

    def search_over_kills(self, spec: TrialsSpec, kills: list[int]) -> module.SearchResult:
        """Killed after so many trainings and scorings, each time, and at last let through."""
        for self.dies_in in kills:
            with pytest.raises(Killed):
                self.search(spec)
                raise Killed  # it was through before
        self.dies_in = -1
        return self.search(spec)


def crossing(trial: Trial, step: int) -> float:
    """Large rates lead at the first rung; at the end 0.003 is best."""
    exponent = math.log10(float(trial.settings["optimizer.lr"] or 0))
    late = math.log(step / LEVELS[0]) / math.log(LEVELS[-1] / LEVELS[0])
    return (1 - late) * -0.5 * exponent + late * abs(exponent - math.log10(3e-3))


def link_of(key: Any) -> Link:
    number, seed = key if isinstance(key, tuple) else (key, 0)
    return Link(kind="run", sha256=f"{number:08x}{seed:08x}".ljust(64, "0"))


def spec(draws: int = 9, rounds: int = 2, **fields: Any) -> TrialsSpec:
    vary = {"optimizer.lr": {"log_uniform": [1e-4, 1.0]}}
    return TrialsSpec.model_validate(
        {"vary": vary, "search": "random", "draws": draws, "rounds": rounds, "rungs": LEVELS, **fields}
    )


def by_rate(trial: Trial, step: int) -> float:
    return float(trial.settings["optimizer.lr"] or 0) + 10 / step


def by_number(trial: Trial, step: int) -> float:
    """The first is best, at each rung."""
    return trial.number + 10 / step


def test_the_best_third_goes_on_and_steps_are_those_of_the_furthest_rungs() -> None:
    machine = Machine(by_number)
    found = machine.search(spec())
    steps = {each.result.trial.number: each.steps for each in found.trials}
    assert [steps[number] for number in range(1, 19)] == [540, 180, 180, *[60] * 6] * 2
    assert found.steps_spent == sum(machine.trained.values()) == 2 * planned_steps(9, LEVELS)
    assert found.best.trial.number == 1 and [each.round for each in found.trials[:2]] == [1, 2]
    rungs = [(event["step"], event["promoted"]) for event in machine.events]
    assert rungs == [(60, [1, 2, 3]), (180, [1]), (540, []), (60, [10, 11, 12]), (180, [10]), (540, [])]
    assert machine.events[-1]["steps_spent"] == found.steps_spent


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_who_learns_lets_those_go_on_that_are_expected_to_come_to_most_and_draws_those_with_the_best_figures(
    method: str,
) -> None:
    machine = Machine(crossing)
    machine.search(spec(search=method, rounds=4))
    rungs = [(event["trials"], event["promoted"]) for event in machine.events if event["promoted"]]
    assert len(rungs) == 8  # of two rungs, four times
    by_figures = [promoted == trials[: len(promoted)] for trials, promoted in rungs]
    assert all(by_figures) == (method == "random")
    assert ("expected to come to" in machine.events[0]["message"]) == (method == "tpe")


@pytest.mark.process
def test_a_search_that_learns_finds_what_early_figures_hide_and_draws_do_not() -> None:
    def regret(method: str) -> float:
        found = [Machine(crossing).search(spec(search=method, rounds=4, seed=seed)) for seed in range(3)]
        return sum(each.score.figure.value for each in found) / len(found)

    learned, drawn = regret("tpe"), regret("random")
    assert learned < 0.5 * drawn, f"{learned:.3f} of {drawn:.3f}"


@pytest.mark.long
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 99), st.lists(st.integers(1, 12), max_size=20), st.sampled_from(["random", "tpe"]))
@pytest.mark.process
def test_a_search_killed_again_and_again_comes_to_the_same_and_trains_no_step_twice(
    seed: int, kills: list[int], method: str
) -> None:
    wanted = spec(draws=5, seed=seed, search=method)
    undisturbed = Machine(by_rate).search(wanted)
    machine = Machine(by_rate)
    found = machine.search_over_kills(wanted, kills)
    assert [(each.result.trial, each.figures) for each in found.trials] == [
        (each.result.trial, each.figures) for each in undisturbed.trials
    ]
    assert found.steps_spent == sum(machine.trained.values()) == undisturbed.steps_spent


@pytest.mark.parametrize(
    ("training", "vary"),
    [
        (TrainingSpec(max_epochs=1), {"seed": {"integer": [1, 40]}}),
        (TrainingSpec(max_epochs=1), {"seed": [1, 2, 3, 4, 5, 6]}),
        (
            TrainingSpec(recipe=RecipeSpec(name=GRADIENT_BOOSTING, model={"iterations": 540, "leaves": 8})),
            {"recipe.model.leaves": [2, 3, 4, 5, 6, 7]},
        ),
    ],
    ids=["epochs", "a small space", "trees"],
)
def test_where_the_length_is_counted_no_settings_are_tried_twice_and_no_trial_takes_the_place_of_another(
    training: TrainingSpec, vary: dict[str, Any]
) -> None:
    machine = Machine(lambda trial, step: 1 / trial.number)
    found = machine.search(spec(draws=4, rounds=3, search="tpe", vary=vary), training)
    trials = [each.result.trial for each in found.trials]
    assert len({str(each.settings) for each in trials}) == len(trials)
    assert sorted(each.number for each in trials) == list(range(1, len(trials) + 1))
    assert len(trials) == (12 if isinstance(next(iter(vary.values())), dict) else 6)
    assert {each.training.max_steps for each in trials} == {540}


@pytest.mark.process
def test_what_a_machine_cannot_train_is_not_proposed_and_a_space_without_anything_else_ends_the_search() -> None:
    wanted = spec(draws=3, search="tpe", vary={"seed": {"integer": [1, 40]}}, rounds=3)
    drawn, allowed = (
        {each.training.seed for each in wanted.drawn(BASE)},
        {*range(7, 20)},
    )

    def refuses(training: TrainingSpec, encoder: Any, world_size: int, methods: Any) -> None:
        if training.seed not in drawn | allowed:
            raise ConfigError(f"seed {training.seed} cannot be trained.")

    machine = Machine(by_number, require_trainable=refuses)
    later = [each.result.trial.training.seed for each in machine.search(wanted).trials if each.round > 1]
    assert later and {*later} <= allowed
    allowed.clear()
    assert len(Machine(by_number, require_trainable=refuses).search(wanted).trials) == 3


def test_rungs_within_a_warm_up_that_varies_are_refused_and_one_that_is_long_enough_is_none() -> None:
    vary = {"schedule.warmup_steps": [10, 60]}
    grid = {"vary": vary, "draws": None, "search": "grid", "rounds": 1}
    for training in (TRAINING, TrainingSpec(max_epochs=1)):
        with pytest.raises(ConfigError, match="lies within the warm-up of 60 steps"):
            Machine(by_number).search(spec(**grid), training)
    # A sampler's are not proposed.
    warmups = {"vary": {"schedule.warmup_steps": {"integer": [1, 99]}}, "search": "tpe", "draws": 1}
    found = Machine(by_number).search(spec(**warmups | {"rounds": 4}))
    assert max(each.result.trial.training.schedule.warmup_steps for each in found.trials) < 60
    # What the file itself says is not tried.
    late = TrainingSpec(max_steps=540, schedule=ScheduleSpec(warmup_steps=100))
    assert Machine(by_number).search(spec(**grid | {"vary": {"schedule.warmup_steps": [10, 20]}}), late).trials


def test_a_trial_that_fails_gives_its_place_to_the_next_best_and_ends_no_other() -> None:
    machine = Machine(by_number, fails_at={1: 180, 2: 540, 7: 1})
    found = machine.search(spec(rounds=1))
    steps = {each.result.trial.number: (each.steps, each.result.error is None) for each in found.trials}
    # 1 fails on its way to 180, and 4 takes its place; 2 on its way to the end, and 3 takes its.
    assert [steps[number] for number in range(1, 6)] == [
        *((60, False), (180, False), (540, True), (180, True), (60, True))
    ]
    assert found.best.trial.number == 3 and steps[7] == (0, False)
    assert [each.result.trial.number for each in found.trials[-3:]] == [2, 1, 7], "those that failed last"


def test_trials_of_other_rungs_are_dropped_as_any_unless_going_on_is_free() -> None:
    machine = Machine(by_number)
    machine.search(spec(rounds=1))
    # All are beyond step 45, and only those that came to 180 are beyond 135.
    before = sum(machine.trained.values())
    found = machine.search(spec(rounds=1, rungs=(45, 135)))
    assert [event["promoted"] for event in machine.events[3:]] == [[1, 2, 3, 4, 5], [1, 2], []]
    assert sum(machine.trained.values()) - before == 2 * 75 + 360
    assert found.best.trial.number == 1
    # So what they are compared by at 45 is of step 60, or of where those came that went on, and is said to be.
    later = {each.result.trial.number: each.later for each in found.trials}
    assert [later[number] for number in (1, 2, 4, 9)] == [{45: 540, 135: 540}, {45: 180, 135: 180}, {45: 60}, {45: 60}]
    steps = {each.result.trial.number: sorted(each.values) for each in found.trials}
    assert [steps[number] for number in (1, 2, 4, 9)] == [[540], [180, 540], [60, 135], [60]], (
        "of what a sampler is told"
    )

    # All came to 180, for nothing: none of them has a place because of that.
    machine = Machine(by_number, reached=dict.fromkeys(range(1, 10), 180))
    machine.search(spec(rounds=1))
    assert [event["promoted"] for event in machine.events] == [[*range(1, 10)], [1], []]


def test_what_has_converged_goes_on_for_nothing_and_counts_by_the_steps_it_made() -> None:
    machine = Machine(by_number, ends_at=90)
    found = machine.search(spec(rounds=1))
    assert [event["promoted"] for event in machine.events] == [[1, 2, 3], [1, 2, 3], []]
    assert found.steps_spent == sum(machine.trained.values()) == 6 * 60 + 3 * 90


def test_where_all_that_went_further_fail_the_best_of_the_others_is_trained_to_its_end() -> None:
    found = Machine(by_number, fails_at=dict.fromkeys(range(1, 4), 540)).search(spec(rounds=1))
    assert found.best.trial.number == 4 and found.trials[0].steps == 540


def test_where_all_fail_the_search_does_and_says_why_of_each() -> None:
    with pytest.raises(TrainingFailed, match=r"(?s)all 4 trials failed.*trial 1 \(optimizer\.lr .*its loss is no"):
        Machine(by_number, fails_at=dict.fromkeys(range(1, 5), 60)).search(spec(draws=2))


def test_where_all_fail_by_what_is_no_trials_own_that_is_the_error_with_its_advice_once() -> None:
    moved = partial(IntegrityError, "its files lie elsewhere.", advice="Work where it was.")
    machine = Machine(by_number, fails_at=dict.fromkeys(range(1, 5), 60), failure=moved)
    with pytest.raises(IntegrityError, match=r"^[0-9a-f]{64}: its files lie elsewhere\. Work where it was\.$"):
        machine.search(spec(draws=2))


@pytest.mark.parametrize(("num_keys", "compared"), [(0, 0), (9, 1), (10, 0)])
def test_intervals_that_lie_apart_tell_nothing_where_rows_are_of_a_few_keys(num_keys: int, compared: int) -> None:
    machine = Machine(lambda trial, step: 1.0 * trial.number, num_keys=num_keys)
    machine.verdict = verdict(Interval(value=-0.05, low=-0.2, high=-0.1))
    machine.search(spec(draws=2, rounds=1, rungs=None))
    assert machine.compared == compared


@pytest.mark.parametrize(
    ("low", "high", "first_bytes", "second_bytes", "kept"),
    [(-0.2, -0.1, 9, 1, 1), (-0.2, 0.1, 9, 1, 2), (-0.2, 0.1, 1, 9, 1), (-0.2, 0.1, 5, 5, 1)],
)
def test_of_two_that_nobody_can_tell_apart_the_cheaper_one_stays(
    low: float, high: float, first_bytes: int, second_bytes: int, kept: int
) -> None:
    machine = Machine(lambda trial, step: 0.01 * trial.number)
    machine.verdict = verdict(Interval(value=-0.05, low=low, high=high), first_bytes, second_bytes)
    found = machine.search(spec(draws=2, rounds=1, rungs=None))
    assert machine.compared == 1 and found.best.trial.number == kept and found.verdict is machine.verdict


def verdict(
    difference: Interval, first_bytes: int = 5, second_bytes: int = 5, failed: tuple[int, int] = (0, 0), **fields: Any
) -> FinalistsVerdict:
    link = Link(kind="checkpoint", sha256=SHA256)
    sizes_bytes = first_bytes, second_bytes
    first, second = (
        Finalist(checkpoints=(link,), failed_seeds=tuple(range(1, 1 + num)), size_bytes=size_bytes)
        for num, size_bytes in zip(failed, sizes_bytes, strict=True)
    )
    given: dict[str, Any] = {"metric": "log_loss", "greater_is_better": False, **fields}
    return FinalistsVerdict(
        first=first,
        second=second,
        seeds=(0,),
        by_seed=(difference.value,),
        difference=difference,
        is_decided=not difference.low <= 0 <= difference.high or failed[0] != failed[1],
        **given,
    )


APART = Interval(value=-0.05, low=-0.1, high=-0.01)


def test_over_more_seeds_the_second_may_be_the_better_one_and_what_fails_with_one_is_the_worse() -> None:
    assert not verdict(APART).keeps_second
    assert verdict(APART, greater_is_better=True).keeps_second
    assert verdict(APART, failed=(1, 0)).keeps_second, "whatever its figure"
    assert not verdict(APART, greater_is_better=True, failed=(0, 1)).keeps_second
    assert verdict(APART, greater_is_better=True, failed=(1, 1)).keeps_second


def test_the_best_two_are_trained_with_other_seeds_which_is_decided_over_all_and_counted() -> None:
    machine = Machine(by_number, fails_at={(10, 2): 1})
    machine.verdict = verdict(APART, failed=(0, 1))
    asked = spec(finalist_seeds=3)
    found = machine.search(asked)
    first, second = machine.finalists
    assert [each.trial.label for each in first] == ["1", "1, seed 1", "1, seed 2"]
    assert [each.trial.training.seed for each in second] == [0, 1, 2]
    assert [each.error is None for each in second] == [True, True, False]
    assert all(each.trial.training.optimizer == second[0].trial.training.optimizer for each in second)
    assert found.best.trial.number == 1 and found.best.trial.training.seed == 0, "its run is that of the file's seed"
    rungs = 2 * planned_steps(9, LEVELS)
    assert found.steps_spent == sum(machine.trained.values()) == rungs + 3 * 540
    assert found.steps_of_all == (18 + 4) * 540

    # Repeated, no step is trained again.
    machine.search(asked)
    assert sum(machine.trained.values()) == rungs + 3 * 540
    # One that came to its end alone has nobody to be compared with.
    machine.compared = 0
    assert machine.search(spec(rounds=1, finalist_seeds=3)).verdict is None and not machine.compared


def test_a_warm_start_says_whether_its_data_are_those_of_today(tmp_path: Path) -> None:
    row = {"settings": {"optimizer.lr": 0.01}, "rungs": {"60": 0.5}, "value": 0.4, "cause": None}
    search = {"greater_is_better": False, "levels": [60, 540], "trials": [row], "pipeline": "tiny"}
    for number, words in ((7, "of today's data"), (8, "of other data (2026-08-01)")):
        data = {"snapshot": link_of(number).sha256, "unix_s": 1785542400.0}
        (tmp_path / "earlier.json").write_text(json.dumps({**search, "data": data}))
        machine = Machine(by_number)
        found = machine.search(spec(draws=2, search="tpe", warm_start=str(tmp_path / "earlier.json")))
        assert found.warm_start == f"1 of 1 trials of earlier.json, {words}"
        assert found.warm_start in machine.events[0]["message"]


def test_no_round_begins_that_would_take_more_than_the_budget_also_where_it_is_repeated() -> None:
    each = planned_steps(9, LEVELS)
    machine = Machine(by_number)
    for _ in range(2):
        found = machine.search(spec(rounds=4, budget={"steps": 3 * each - 1}))
        assert found.steps_spent == sum(machine.trained.values()) == 2 * each and len(found.trials) == 18
        assert found.ended.endswith(f"round 3 would take {each:,}: more than {3 * each - 1:,} in all")
        assert machine.events[-1]["message"] == f"the budget ends it: {found.ended}"
    assert len(machine.search(spec(rounds=4, budget={"steps": 3 * each})).trials) == 27


def spent_s(machine: Machine) -> float:
    return spent_by(map(machine.progress_of, machine.worked)).wall_s


@pytest.mark.parametrize("seconds", [700, 1200, 2000, 4000, 5000])
def test_in_hours_a_search_ends_within_them_with_its_best_at_its_end_and_repeated_comes_to_the_same(
    seconds: int,
) -> None:
    machine = Machine(by_number)
    asked = spec(rounds=4, budget={"hours": seconds / 3600})
    found = machine.search(asked)
    assert found.best.trial.number == 1 and 540 in found.trials[0].figures
    assert seconds / 2 < spent_s(machine) <= seconds
    assert "so far, and what follows would take about" in found.ended
    assert f"the budget ends it: {found.ended}" in [each["message"] for each in machine.events]
    assert all(each.figures for each in found.trials), "what never trained is no trial"
    trained = dict(machine.trained)
    again = machine.search(asked)
    assert machine.trained == trained
    # At the same place: what the best took to its end counts by now.
    assert again.ended.partition(":")[0] == found.ended.partition(":")[0]
    assert [each.result.trial for each in again.trials] == [each.result.trial for each in found.trials]

    # More of it continues where it was, to what an undisturbed search comes to.
    whole, undisturbed = machine.search(spec(rounds=4)), Machine(by_number).search(spec(rounds=4))
    assert not whole.ended and whole.best.trial == undisturbed.best.trial
    assert whole.steps_spent == sum(machine.trained.values()) >= undisturbed.steps_spent


def test_where_no_pace_is_known_a_queue_gets_as_many_as_train_at_a_time_and_their_pace_bounds_the_others() -> None:
    machine = Machine(by_number, is_queue=True)
    wanted = spec(rounds=1, max_parallel=2, budget={"hours": 900 / 3600})  # 70 s each to the first rung, 540 to the end
    found = machine.search(wanted)
    assert sorted(machine.reached) == [1, 2, 3, 4] and found.best.trial.number == 1
    assert "more than 0.25 hours in all" in found.ended


def test_where_the_first_of_a_queue_fail_before_a_step_no_more_are_queued_than_train_at_a_time() -> None:
    machine = Machine(by_number, is_queue=True, fails_at={1: 1, 2: 1})
    found = machine.search(spec(rounds=1, max_parallel=2, budget={"hours": 900 / 3600}))
    assert sorted(machine.reached) == [3, 4, 5, 6] and found.best.trial.number == 3


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 25), max_size=6), st.sampled_from([{"hours": 0.9}, {"usd": 30.0}]))
@pytest.mark.process
def test_killed_again_and_again_a_search_goes_on_with_what_is_left_of_its_budget(
    kills: list[int], asked: dict[str, float]
) -> None:
    undisturbed, machine = Machine(by_number), Machine(by_number)
    wanted = spec(rounds=4, budget=asked)
    expected = undisturbed.search(wanted)
    found = machine.search_over_kills(wanted, kills)
    assert spent_s(machine) <= 3240 and found.ended
    assert found.best.trial == expected.best.trial
    assert [each.result.trial.number for each in found.trials] == [each.result.trial.number for each in expected.trials]


def test_other_seeds_of_finalists_that_the_budget_does_not_hold_are_left_out() -> None:
    machine = Machine(by_number)
    machine.verdict = verdict(APART)
    found = machine.search(spec(finalist_seeds=3, budget={"hours": 1.2}))
    assert [len(each) for each in machine.finalists] == [1, 1] and found.verdict is machine.verdict
    assert "the best two with other seeds: " in found.ended


def test_a_budget_that_comes_to_no_rung_is_refused() -> None:
    machine = Machine(by_number, worked=defaultdict(list, {run_folder(link_of(1)): [Worked("killed", 0.0, 90.0)]}))
    with pytest.raises(ConfigError, match=r"trials\.budget: it ends the search before a trial comes to step 60"):
        machine.search(spec(budget={"hours": 0.02}))


def test_two_whose_own_intervals_lie_apart_are_not_scored_again() -> None:
    machine = Machine(by_number)
    assert machine.search(spec(draws=2, rounds=1, rungs=None)).verdict is None and machine.compared == 0
    assert machine.events == [], "without rungs the final table says all"
