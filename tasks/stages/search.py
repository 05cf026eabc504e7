"""A search: rounds of trials, of which some go on from rung to rung; the winner, trained to its end, is the run.

Nothing of a search is kept but its trials' runs and scores. Repeated after whatever ended it, it proposes the same,
finds what is there, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headway.data_contracts.store.documents import Interval, Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.report_text import count, figure
from headway.tasks.core.context import RunContext
from headway.tasks.search.budget import WHERE as BUDGET
from headway.tasks.search.budget import SearchBudget
from headway.tasks.search.configuration import Configuration, is_of_shards
from headway.tasks.search.earlier_trials import Outcome, read_earlier
from headway.tasks.search.pace import pace_of, require_worthwhile
from headway.tasks.search.proposals import PastTrial, next_round, prospects
from headway.tasks.search.rungs import (
    RungScore,
    num_promoted,
    planned_steps,
    promoted,
    too_short,
)
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.stages.finalists import FinalistsVerdict, compare_finalists
from headway.tasks.stages.launch import num_training_rows
from headway.tasks.stages.tracked_search import TrackedSearch, TrialFigures
from headway.tasks.stages.trial_scores import (
    PlannedTrial,
    Scoring,
    TrialResult,
    TrialScore,
    all_failed,
    place,
    rank_trials,
)
from headway.tasks.stages.trial_shards import TrialShards
from headway.tasks.stages.trials import AT_ONCE, describe_trials, room_of, train_trials
from headway.training.checkpoint.layout import run_folder
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.supervise.room import Room
from headway.training.launch.supervise.step_pace import StepPace

NAMED_IN_A_LINE = 5


@dataclass(kw_only=True, slots=True)
class SearchedTrial:
    """What a search knows of a trial."""

    result: TrialResult
    """The newest."""
    round: int
    """From 1."""
    figures: dict[int, Interval] = field(default_factory=dict)
    """By the step of the rung."""
    later: dict[int, int] = field(default_factory=dict)
    """By rung, the step that its figure is of where that is a later one: the checkpoint of the rung itself was gone."""
    other_seeds: list[TrialResult] = field(default_factory=list)
    """Of a finalist: its settings, trained with other seeds."""

    @property
    def steps(self) -> int:
        """Trained in all, by whomever; of one that failed, up to its last rung."""
        return sum(each.trained_step for each in (self.result, *self.other_seeds))

    @property
    def values(self) -> dict[int, float]:
        """By the step that the checkpoint was really of: a sampler compares figures of equal steps. Lower is better."""
        return {self.later.get(rung, rung): self.value_at(rung) for rung in self.figures}

    def value_at(self, step: int) -> float:
        """Lower is better."""
        assert self.result.score is not None  # it was scored there
        return self.result.score.lower(self.figures[step].value)


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search came to."""

    trials: list[SearchedTrial]
    """The one to keep first; then those that came furthest, the best first; those that failed last."""
    levels: tuple[int, ...]
    """The steps at which they were compared."""
    verdict: FinalistsVerdict | None
    """None: only one was trained to its end, or of one seed their own intervals tell the best two apart already."""
    warm_start: str = ""
    """Which trials of an earlier search proposed the first round; empty: none."""
    ended: str = ""
    """What of its budget ended it before all was tried; empty: nothing did."""
    pace: StepPace | None = None
    """None: none trained beside another in this flow run."""

    @property
    def best(self) -> TrialResult:
        return self.trials[0].result

    @property
    def score(self) -> TrialScore | None:
        """Of the first that was scored; None: none was yet."""
        return next((each.result.score for each in self.trials if each.result.score is not None), None)

    @property
    def steps_spent(self) -> int:
        return sum(each.steps for each in self.trials)

    @property
    def steps_of_all(self) -> int:
        """What training every trial to its end takes."""
        return sum(
            result.trial.training.max_steps for each in self.trials for result in (each.result, *each.other_seeds)
        )


def search(
    context: RunContext,
    spec: TrialsSpec,
    training: TrainingSpec,
    scoring: Scoring,
    manifest: Link,
    tracking_uri: str,
    base: RunSpec | None = None,
    budget: SearchBudget | None = None,
    observe: Callable[[SearchResult], None] = lambda so_far: None,
) -> SearchResult:
    """Try settings of a pipeline's training and shards, and train the best to its end.

    Args:
        manifest: the shards of the pipeline file's own settings.
        base: a run whose code, environment and start all trials are to have; None: those of now.
        budget: in hours or money; None: neither bounds it.
        observe: told of what there is whenever trials begin, and whenever they were scored.

    Raises:
        ConfigError: rungs that are none of it, lie within a warm-up, or are not worth their starts; too small a budget.
        RunStopped: a stop was asked for; the same command continues.
        TrainingFailed: all trials failed.
    """
    num_rows = num_training_rows(context, manifest)
    own = Configuration(training=training.for_rows(num_rows), shards=scoring.shards)
    require_worthwhile(context.workspace, context.pipeline, spec, own.training)
    steps = spec.levels_of(own.training)
    spec.require_affordable(own)

    earlier: Sequence[Outcome] = ()
    warm_start = ""
    if spec.warm_start is not None:
        found = read_earlier(context.base / spec.warm_start, spec.space, steps[-1])
        snapshot = context.workspace.load(manifest, ShardManifest).snapshot
        earlier, warm_start = found.outcomes, found.on(context.pipeline, snapshot.sha256)
        message = f"warm start: {warm_start}; they lie in this space, and their figures propose the first round alone"
        context.ledger.event("rung", message=message, step=steps[0], steps_spent=0)
    return _Search(
        context, spec, training, steps, scoring, manifest, tracking_uri, earlier, warm_start, base, budget, observe
    ).run()


class _Search:
    def __init__(
        self,
        context: RunContext,
        spec: TrialsSpec,
        training: TrainingSpec,
        levels: tuple[int, ...],
        scoring: Scoring,
        manifest: Link,
        tracking_uri: str,
        earlier: Sequence[Outcome],
        warm_start: str,
        base: RunSpec | None,
        budget: SearchBudget | None,
        observe: Callable[[SearchResult], None],
    ) -> None:
        self._context, self._spec, self._budget = context, spec, budget
        self._ended = ""
        """What ended it before all was tried."""
        self._configuration = Configuration(training=training, shards=scoring.shards)
        self._scoring, self._uri = scoring, tracking_uri
        self._shards = TrialShards(context, scoring, manifest)
        self._levels = levels
        self._tracked = TrackedSearch(context, spec, training, manifest, tracking_uri)
        self._room: Room | None = None
        self._num_threads = 0
        self._trials: dict[int, SearchedTrial] = {}
        self._earlier, self._warm_start, self._base, self._observe = earlier, warm_start, base, observe
        self._has_looked_at_pace = len(levels) == 1 or not spec.min_starts

    def run(self) -> SearchResult:
        for number in range(self._spec.rounds):
            if self._would_exceed_budget(number):
                break
            records = [_record(each) for each in self._trials.values()]
            trials = next_round(
                self._spec,
                self._configuration,
                number,
                records,
                self._levels[-1],
                lambda wanted: self._shards.settled(wanted, self._levels),
                self._earlier,
            )
            if not trials:
                break  # every setting of the space was tried
            planned = describe_trials(self._context, trials, self._shards.manifest, self._beside())
            for each in planned:
                assert each.trial.number not in self._trials
                self._trials[each.trial.number] = SearchedTrial(result=TrialResult(planned=each), round=number + 1)
            self._observe(self._result(self._ranked()))
            self._run_round(planned)
            if self._ended:
                break
        # Those that the budget let none train are none that were tried.
        self._trials = {
            number: each for number, each in self._trials.items() if each.figures or each.result.error is not None
        }
        if not self._trials:
            raise ConfigError(
                f"it ends the search before a trial comes to step {self._levels[0]:,}: {self._ended}.",
                where=BUDGET,
                advice="Raise it, lay the first rung earlier, or draw fewer.",
            )
        ranked = self._ranked()
        # Where all that went further failed, whoever is best of the others takes their place.
        while ranked[0].result.error is None and self._levels[-1] not in ranked[0].figures:
            self._at(self._levels[-1], [ranked[0].result.trial.number], is_bound=False)
            ranked = self._ranked()
        if ranked[0].result.score is None or ranked[0].result.error is not None:
            raise all_failed(self._context, [each.result for each in ranked])
        verdict = self._verdict(ranked)
        if verdict is not None and verdict.keeps_second:
            ranked[:2] = reversed(ranked[:2])
        self._track(is_over=True)
        return self._result(ranked, verdict)

    def _result(self, ranked: list[SearchedTrial], verdict: FinalistsVerdict | None = None) -> SearchResult:
        """What there is by now."""
        return SearchResult(
            trials=ranked,
            levels=self._levels,
            verdict=verdict,
            warm_start=self._warm_start,
            ended=self._ended,
            pace=None if self._room is None else self._room.paces.pace(),
        )

    def _beside(self) -> RunSpec | None:
        """Whose code and environment the next trials have."""
        if self._base is not None or not self._trials:
            return self._base
        first = next(iter(self._trials.values())).result.planned.settled.run
        return first.model_copy(update={"start": None})

    def _would_exceed_budget(self, number: int) -> bool:
        """Of the first round, which was looked at before anything was spent, never."""
        draws, budget = self._spec.draws, None if self._spec.budget is None else self._spec.budget.steps
        if budget is None or draws is None or number == 0:
            return False
        spent = sum(each.steps for each in self._trials.values())
        wanted = planned_steps(draws, self._levels)
        if spent + wanted <= budget:
            return False
        message = (
            f"{count(spent, 'step')} so far, and round {number + 1} would take {wanted:,}: more than {budget:,} in all"
        )
        self._end(message, self._levels[-1])
        return True

    def _end(self, why: str, step: int) -> None:
        self._ended = f"{self._ended}; {why}" if self._ended else why
        spent = sum(each.steps for each in self._trials.values())
        self._context.ledger.event("rung", message=f"the budget ends it: {why}", step=step, steps_spent=spent)

    def _may_begin(self, budget: SearchBudget, each: PlannedTrial, to_step: int) -> bool:
        """Whether a trial may train on: what another stretch is likely to take still fits."""
        if not self._ended:
            has_model = any(self._levels[-1] in trial.figures for trial in self._trials.values())
            to_the_end = 0 if has_model else each.trial.training.max_steps - to_step
            if why := budget.refusal({run_folder(each.run): to_step}, to_the_end):
                self._end(f"{each.trial.name} to step {to_step:,}: {why}", to_step)
        return not self._ended

    def _run_round(self, planned: Sequence[PlannedTrial]) -> None:
        on, staying = [each.trial.number for each in planned], list[int]()
        num_planned = len(on)
        for level, step in enumerate(self._levels):
            num_wanted, scored = len(on), self._at(step, on)
            # One that fails gives its place to the next best of the rung before.
            while len(scored) < num_wanted and staying and not self._ended:
                missing = num_wanted - len(scored)
                scored += self._at(step, staying[:missing])
                staying = staying[missing:]
            if not scored:
                return
            if step == self._levels[-1] or self._ended:
                self._report(step, scored, [])
                return
            following = self._levels[level + 1]
            scores = [
                RungScore(number=number, value=value, is_ahead=self._is_ahead(number, following))
                for number, value in self._prospects(step, scored).items()
            ]
            # By how many were to come here: of those that failed none goes on, and those ahead make no more places.
            num_planned = num_promoted(num_planned - sum(each.is_ahead for each in scores), step, following)
            on, staying = promoted(scores, num_planned)
            self._report(step, scored, on)

    def _prospects(self, step: int, scored: Sequence[int]) -> dict[int, float]:
        """By trial, what decides who goes on from a rung; lower is better."""
        records = [_record(each) for each in self._trials.values()]
        at_rung = {number: self._trials[number].value_at(step) for number in scored}
        return prospects(self._spec, records, at_rung, self._levels[-1])

    def _is_ahead(self, number: int, following: int) -> bool:
        """Whether going on to the next rung costs nothing."""
        result = self._trials[number].result
        return result.is_finished or result.trained_step >= following

    def _at(self, step: int, numbers: Sequence[int], *, is_bound: bool = True) -> list[int]:
        """Have trials trained to a step, and scored there; returns those that came to it.

        Args:
            is_bound: whether the budget may leave some out.
        """
        planned = [self._trials[number].result.planned for number in numbers]
        to_step = None if step == self._levels[-1] else step
        ranked = self._trained(planned, to_step, is_bound=is_bound)
        for result in ranked:
            trial = self._trials[result.trial.number]
            if result.score is None:
                # What it came to before stays known beside the failure.
                before = trial.result
                trial.result = TrialResult(
                    planned=result.planned,
                    error=result.error,
                    checkpoint=before.checkpoint,
                    trained_step=before.trained_step,
                    is_finished=before.is_finished,
                    score=before.score,
                )
            else:
                trial.result, trial.figures[step] = result, result.score.figure
                # A finished run's model may be an earlier checkpoint than its last: the end is no rung.
                if to_step is not None and result.model_step > step:
                    trial.later[step] = result.model_step
        self._observe(self._result(self._ranked()))
        return [result.trial.number for result in ranked if result.score is not None]

    def _trained(self, planned: Sequence[PlannedTrial], to_step: int | None, *, is_bound: bool) -> list[TrialResult]:
        """With their scores, the best first, and those that failed last."""
        may_begin = None
        evaluation, launch = self._scoring.evaluation, self._scoring.launch
        at_once = self._spec.max_parallel or AT_ONCE
        budget = self._budget if is_bound else None
        if budget is not None:

            def may_begin(each: PlannedTrial) -> bool:
                return self._may_begin(budget, each, to_step or each.trial.training.max_steps)

        room = None if launch.is_detached else self._room_for(planned)
        trained, left = list[TrialResult](), list(planned)
        while left:
            wave, left = left, []
            if budget is not None:
                budget.know(run_folder(each.run) for each in wave)
                # A queue takes all of them, and before anything has trained nobody knows how many there is room for.
                if launch.is_detached and not budget.knows_pace:
                    wave, left = wave[:at_once], wave[at_once:]
            trained += train_trials(
                self._context, wave, launch, self._uri, at_once, evaluation, to_step, room, may_begin
            )
        self._look_at_pace(planned[0].run)
        scores = (each.result.score for each in self._trials.values())
        like = next((each for each in scores if each is not None), None)
        return rank_trials(self._context, self._scoring, trained, to_step, like)

    def _room_for(self, planned: Sequence[PlannedTrial]) -> Room:
        num_threads = max(each.trial.training.num_threads for each in planned)
        if self._room is None or num_threads > self._num_threads:
            at_most = self._spec.max_parallel or self._spec.max_trials
            before, self._room = self._room, room_of(self._context, planned, self._scoring.launch, at_most)
            self._num_threads = num_threads
            if before is not None:
                self._room.largest_bytes, self._room.paces = before.largest_bytes, before.paces
        return self._room

    def _ranked(self) -> list[SearchedTrial]:
        def of(trial: SearchedTrial) -> tuple[bool, int, tuple[float, int]]:
            return trial.result.error is not None, -max(trial.figures, default=0), place(trial.result)

        return sorted(self._trials.values(), key=of)

    def _verdict(self, ranked: Sequence[SearchedTrial]) -> FinalistsVerdict | None:
        ended = [each for each in ranked[:2] if each.result.error is None and self._levels[-1] in each.figures]
        if len(ended) < 2:
            return None
        one, other = (each.figures[self._levels[-1]] for each in ended)
        has_few_keys = any(each.result.score is not None and each.result.score.has_few_keys for each in ended)
        # Intervals that lie apart are of a difference whose own leaves out 0; of a few keys neither says anything.
        if self._spec.finalist_seeds == 1 and not has_few_keys and (one.high < other.low or other.high < one.low):
            return None
        self._train_with_other_seeds(ended)
        first, second = ((each.result, *each.other_seeds) for each in ended)
        return compare_finalists(self._context, self._scoring, first, second)

    def _train_with_other_seeds(self, finalists: Sequence[SearchedTrial]) -> None:
        numbers = range(1, self._spec.finalist_seeds)
        if not numbers:
            return
        # Each on the code of its own run, whatever was edited meanwhile.
        by_finalist = [
            describe_trials(
                self._context,
                [each.result.trial.with_other_seed(number) for number in numbers],
                self._shards.manifest,
                each.result.planned.settled.run,
            )
            for each in finalists
        ]
        planned = [each for pair in zip(*by_finalist, strict=True) for each in pair]
        if self._budget is not None:
            wanted = {run_folder(each.run): each.trial.training.max_steps for each in planned}
            self._budget.know(wanted)
            if why := self._budget.refusal(wanted):
                # Of one seed they are compared all the same.
                self._end(f"the best two with other seeds: {why}", self._levels[-1])
                return
        trained = self._trained(planned, None, is_bound=False)
        for result in sorted(trained, key=lambda each: each.trial.training.seed):
            self._trials[result.trial.number].other_seeds.append(result)

    def _report(self, step: int, scored: Sequence[int], on: Sequence[int]) -> None:
        """A line for each rung; searches without rungs have the final table alone."""
        self._track(is_over=False)
        if len(self._levels) == 1:
            return
        spent = sum(each.steps for each in self._trials.values())
        best = min(scored, key=lambda number: (self._trials[number].value_at(step), number))
        shown, score = figure(self._trials[best].figures[step].value), self._trials[best].result.score
        assert score is not None  # it was scored there
        where = f"step {step:,} of {self._levels[-1]:,}"
        named = ", ".join(map(str, on[:NAMED_IN_A_LINE])) + (", ..." if len(on) > NAMED_IN_A_LINE else "")
        how = ", by what they are expected to come to" if self._spec.is_learning else ""
        follows = f"; {len(on)} of {len(scored)} go on{how}: {named}" if on else ""
        self._context.ledger.event(
            "rung",
            message=f"{where}: {count(len(scored), 'trial')}, the best is {best} with {shown}{follows}; "
            f"{count(spent, 'step')} so far",
            step=step,
            trials=list(scored),
            values=[self._trials[number].figures[step].value for number in scored],
            greater_is_better=score.greater_is_better,
            promoted=list(on),
            steps_spent=spent,
        )

    def _track(self, *, is_over: bool) -> None:
        scored = [each for each in self._trials.values() if each.result.score is not None]
        if not scored:
            return
        score = scored[0].result.score
        assert score is not None
        ended = [each.value_at(self._levels[-1]) for each in scored if self._levels[-1] in each.figures]
        seeds = {
            each.trial.name: _tracked(each, {self._levels[-1]: each.score.figure.value})
            for trial in scored
            for each in trial.other_seeds
            if each.score is not None
        }
        figures = {
            each.result.trial.name: _tracked(
                each.result, {step: figure.value for step, figure in each.figures.items() if step not in each.later}
            )
            for each in scored
        }
        spent = sum(each.steps for each in self._trials.values())
        best = score.lower(min(ended)) if ended else None  # which turns it back
        self._tracked.log(score.metric, {**figures, **seeds}, best, spent, is_over=is_over)

    def _look_at_pace(self, run: Link) -> None:
        """After the first trial that was trained here: what a start takes may not have been known before."""
        if self._has_looked_at_pace:
            return
        if (pace := pace_of(self._context.workspace.local_path(run_folder(run)))) is not None:
            self._has_looked_at_pace = True
            if why := too_short(self._levels, pace, self._spec.min_starts):
                self._context.ledger.event("rung", message=f"not worth its starts: {why}", step=self._levels[0])


def _tracked(result: TrialResult, by_step: dict[int, float]) -> TrialFigures:
    of_shards = {name: value for name, value in result.trial.settings.items() if is_of_shards(name)}
    return TrialFigures(result.planned.settled.run, by_step, of_shards)


def _record(trial: SearchedTrial) -> PastTrial:
    return PastTrial(trial=trial.result.trial, values=trial.values, has_failed=trial.result.error is not None)
