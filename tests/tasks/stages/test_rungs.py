"""What is on record of trials at rungs, and what becomes of it when checkpoints go; training and scoring are played."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import CheckpointManifest, Interval, Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError, RunStopped
from headway.tasks.core.candidate import read_candidate, require_files
from headway.tasks.core.context import RunContext
from headway.tasks.core.run_result import checkpoint_at
from headway.tasks.core.stage import StageOutput
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.search.trials_spec import Trial
from headway.tasks.stages import trial_scores
from headway.tasks.stages import trials as module
from headway.tasks.stages.starting_point import ResolvedStart
from headway.tasks.stages.trial_scores import PlannedTrial, Scoring, TrialResult, TrialScore
from headway.training.checkpoint.layout import RESULT_NAME, RunResult, checkpoint_path, directory_name, run_folder
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import LaunchSpec
from tests.tasks.conftest import NOWHERE
from tests.tasks.past_work import Maker

TRAINING = TrainingSpec(max_steps=90)
HERE = LaunchSpec(nodes=1)
AS_JOBS = LaunchSpec.model_validate({"nodes": 1, "launcher": "slurm"})
FAIL = "cannot be trained"


@dataclass
class Bench:
    """Ranks that leave a checkpoint where they pause, and one at their end; only the newest is kept."""

    context: RunContext
    manifest: Link
    best_step: int | None = None
    """Which checkpoint is the model of a run that ends; None: its last one."""
    refuses: Callable[[int], bool] = lambda number: False
    left_by: dict[str, BaseException | None] = field(default_factory=dict)
    """By trial: what ended its training as others see it, such as MLflow."""
    trained: list[tuple[str, int]] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    """Steps of checkpoints."""

    def planned(self, number: int) -> PlannedTrial:
        workspace = self.context.workspace
        shards = workspace.load(self.manifest, ShardManifest)
        training = TRAINING.model_copy(update={"seed": number})
        run = RunSpec(
            pipeline="tiny",
            config=training.model_dump(mode="json"),
            manifest=self.manifest,
            receipt=shards.receipt,
            fitted=shards.fitted,
            code=NOWHERE,
            environment=NOWHERE,
        )
        trial = Trial(number=number, settings={"seed": number}, training=training, shards=ShardSpec())
        return PlannedTrial(trial, ResolvedStart(run, ""), workspace.publish_document(run))

    @contextlib.contextmanager
    def watched(
        self, context: Any, training: TrainingSpec, spec: Any, settled: Any, uri: str, name: str, seen: Any = None
    ) -> Iterator[Any]:
        if self.refuses(training.seed):
            raise ConfigError(f"trial {training.seed} {FAIL}.")
        run, to_step = settled.run.link, context.stop.at_step
        self.left_by[name] = None
        try:
            yield SimpleNamespace(train=lambda: self.train(run, name, to_step)), lambda: None
        except BaseException as error:
            self.left_by[name] = error
            raise

    def train(self, run: Link, name: str, to_step: int | None) -> None:
        step = to_step or TRAINING.max_steps
        self.trained.append((name, step))
        workspace, folder = self.context.workspace, run_folder(run)
        manifest = Maker(workspace).checkpoint(run, step)
        if to_step is not None:
            raise RunStopped(f"stopped at step {step}.", reason="step reached")
        if self.best_step is not None:
            manifest = Maker(workspace).checkpoint(run, self.best_step)
        result = RunResult(
            run=run.sha256,
            step=manifest.step,
            checkpoint=directory_name(manifest.step),
            manifest_sha256=manifest.sha256,
            tensors_sha256="0" * 64,
        )
        workspace.publish_json(f"{folder}/{RESULT_NAME}", result.model_dump())

    def run_all(self, context: Any, spec: Any, watched: Any, *, at_once: int, tolerable: Any, ended: Any) -> None:
        for number, (gang, _) in enumerate(watched):
            try:
                gang.train()
            except RunStopped as stopped:
                assert tolerable(stopped)
                ended(number, stopped)
            else:
                ended(number, None)

    def score(self, bench: Any, spec: EvaluationSpec, checkpoint: Link) -> StageOutput:
        candidate = read_candidate(self.context.workspace, checkpoint)
        require_files(self.context, candidate)
        self.scored.append(candidate.manifest.step)
        value = float(candidate.manifest.step)
        document = TrialScore(
            checkpoint=checkpoint,
            metric="log_loss",
            greater_is_better=False,
            figure=Interval(value=value, low=value - 1, high=value + 1),
            num_examples=9,
            examples_sha256="0" * 64,
        )
        return StageOutput(document=document)

    def at(self, step: int | None, *numbers: int, spec: LaunchSpec = HERE, **evaluation: Any) -> list[TrialResult]:
        wanted, planned = EvaluationSpec(**evaluation), [self.planned(number) for number in numbers]
        results = module.train_trials.fn(self.context, planned, spec, "", 2, wanted, step)
        nothing: Any = None
        scoring = Scoring(evaluation=wanted, launch=spec, shards=nothing, source=nothing)
        ranked = trial_scores.rank_trials.fn(self.context, scoring, results, step)
        return sorted(ranked, key=lambda each: each.trial.number)


@pytest.fixture
def bench(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(context, Maker(context.workspace).data(0))
    monkeypatch.setattr(module, "watched_training", made.watched)
    monkeypatch.setattr(module, "run_to_completion", lambda context, spec, gang, poll: gang.train())
    monkeypatch.setattr(module, "run_all_to_completion", made.run_all)
    monkeypatch.setattr(module, "showing_slow_ranks", lambda context: contextlib.nullcontext())
    monkeypatch.setattr(module, "observe_lease", lambda workspace, run: None)
    monkeypatch.setattr(trial_scores, "remember_ranking", lambda *arguments: None)
    monkeypatch.setattr(trial_scores, "ScoringHarness", SimpleNamespace)
    monkeypatch.setattr(trial_scores, "_score", made.score)
    return made


def launched(spec: LaunchSpec) -> str:
    return spec.launcher


@pytest.mark.parametrize("spec", [HERE, AS_JOBS], ids=launched)
def test_trials_that_went_on_are_scored_by_other_rules_too_and_what_was_decided_stays(
    bench: Bench, spec: LaunchSpec
) -> None:
    first = bench.at(30, 1, 2, spec=spec)
    bench.at(60, 1, spec=spec)
    assert bench.at(30, 1, 2, spec=spec) == first and bench.scored == [30, 30, 60]
    assert [each.trained_step for each in first] == [30, 30]

    # The checkpoint of step 30 went as trial 1 went on: the one that there is takes its place, and keeps it.
    for _ in range(2):
        again = bench.at(30, 1, 2, spec=spec, confidence=0.9)
        assert [each.error for each in again] == [None, None]
        assert [each.trained_step for each in again] == [60, 30]
    assert bench.scored == [30, 30, 60, 60, 30] and len(bench.trained) == 3


@pytest.mark.parametrize("spec", [HERE, AS_JOBS], ids=launched)
def test_a_checkpoint_that_is_damaged_before_it_is_scored_is_trained_again(bench: Bench, spec: LaunchSpec) -> None:
    planned = bench.planned(1)
    module.train_trials.fn(bench.context, [planned], spec, "", 2, EvaluationSpec(), 30)
    tensors = f"{checkpoint_path(run_folder(planned.run), 30)}/tensors.safetensors"
    bench.context.workspace.local_path(tensors).write_bytes(b"torn")
    (result,) = bench.at(30, 1, spec=spec)
    assert result.error is None and bench.scored == [30] and len(bench.trained) == 2


def test_a_score_of_another_checkpoint_ranks_no_trial(bench: Bench) -> None:
    bench.at(30, 1, 2)
    workspace, spec = bench.context.workspace, EvaluationSpec()
    reached = [checkpoint_at(bench.context, bench.planned(number).run, 30) for number in (1, 2)]
    one, other = (
        stages.stage_key("score", trial_scores.inputs_at_rung(spec, 30, each.link)) for each in reached if each
    )
    taken = stages.recorded(workspace, "score", other)
    found = stages.recorded(workspace, "score", one)
    assert taken is not None and found is not None
    workspace.remove(stages.record_path("score", one))
    stages.record(workspace, "score", found.inputs, taken.document)
    first, second = bench.at(30, 1, 2)
    assert first.score is None and second.error is None
    assert first.error is not None and "is of another checkpoint" in str(first.error)
    assert f"stages/score/{one}.json" in str(first.error)


def test_a_rung_of_another_run_or_of_no_such_step_is_none_of_a_trial(bench: Bench) -> None:
    first = bench.at(30, 1, 2)
    workspace, planned = bench.context.workspace, bench.planned(1)
    key = stages.stage_key("rung", {"run": planned.run.sha256, "step": 30})
    found = stages.recorded(workspace, "rung", key)
    assert found is not None
    own = workspace.load(found.document, module.Rung)
    other = checkpoint_at(bench.context, bench.planned(2).run, 30)
    assert other is not None
    for forged in (own.model_copy(update={"checkpoint": other.link}), own.model_copy(update={"trained_step": 10**18})):
        workspace.remove(stages.record_path("rung", key))
        stages.record(workspace, "rung", found.inputs, workspace.publish_document(forged))
        assert bench.at(30, 1, 2) == first, "found anew, from the run's own checkpoint"
    assert len(bench.trained) == 2


@pytest.mark.parametrize("spec", [HERE, AS_JOBS], ids=launched)
def test_a_pause_is_shown_as_a_stop_and_an_end_as_an_end(bench: Bench, spec: LaunchSpec) -> None:
    bench.at(30, 1, spec=spec)
    stopped = bench.left_by["trial 1"]
    assert isinstance(stopped, RunStopped) and stopped.reason == "step reached"


def test_of_a_run_whose_model_is_its_best_checkpoint_all_steps_are_counted(bench: Bench) -> None:
    bench.best_step = 40
    planned = bench.planned(1)
    with bench.watched(bench.context, planned.trial.training, HERE, planned.settled, "", "trial 1") as (gang, _):
        gang.train()
    for step in (30, 60):
        (result,) = bench.at(step, 1)
        assert (result.trained_step, result.is_finished) == (90, True)
        assert result.checkpoint is not None
        assert bench.context.workspace.load(result.checkpoint, CheckpointManifest).step == 40


def test_a_trial_that_is_refused_as_it_starts_ends_no_other(bench: Bench) -> None:
    bench.refuses = lambda number: number == 2
    one, two, three = bench.at(30, 1, 2, 3, spec=AS_JOBS)
    assert one.error is None and three.error is None and FAIL in str(two.error)
