"""Which of two settings is better, and when nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.data_contracts.store.documents import Interval, Link
from headway.data_contracts.store.errors import ConfigError, TrainingFailed
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.trials import comparison
from headway.flows.trials.comparison import summarise_comparison
from headway.flows.trials.wanted import require_comparable
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.trials_spec import Trial
from headway.tasks.stages.finalists import Finalist, FinalistsVerdict
from headway.tasks.stages.settings_comparison import SettingsComparison, differing
from headway.tasks.stages.trial_scores import PlannedTrial, TrialResult, TrialScore
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec
from tests.flows.tiny_pipeline import PIPELINE

BASE = Configuration(training=TrainingSpec(), shards=ShardSpec())
CHANGE = replace(BASE, training=TrainingSpec(optimizer=OptimizerSpec(lr=0.5)))


def link(name: str) -> Link:
    return Link(kind="checkpoint", sha256=name.ljust(64, "0").encode().hex()[:64])


def results(number: int, values: list[float | None]) -> list[TrialResult]:
    made = []
    for seed, value in enumerate(values):
        training = BASE.training.model_copy(update={"seed": seed})
        trial = Trial(number=number, settings={}, training=training, shards=BASE.shards)
        planned = PlannedTrial(trial, cast(Any, None), link(f"{number}{seed}"))
        score = value is not None and TrialScore(
            checkpoint=link("c"),
            metric="log_loss",
            greater_is_better=False,
            figure=Interval(value=value, low=value, high=value),
            num_examples=9,
            examples_sha256="0" * 64,
        )
        error = TrainingFailed("it diverged") if value is None else None
        made.append(TrialResult(planned=planned, score=score or None, error=error))
    return made


def compared(
    this: list[float | None], other: list[float | None], gap: tuple[float, float, float] | None, num_keys: int = 0
) -> Any:
    verdict = None
    if gap is not None:
        value, low, high = gap
        failed = [tuple(seed for seed, each in enumerate(side) if each is None) for side in (this, other)]
        first, second = (Finalist(checkpoints=(), failed_seeds=each, size_bytes=1) for each in failed)
        verdict = FinalistsVerdict(
            first=first,
            second=second,
            seeds=(0, 1),
            metric="log_loss",
            greater_is_better=False,
            by_seed=(value, value),
            difference=Interval(value=value, low=low, high=high),
            num_keys=num_keys,
            is_decided=(not num_keys and not low <= 0 <= high) or len(failed[0]) != len(failed[1]),
        )
    settings = differing(CHANGE, BASE)
    found = SettingsComparison(settings=settings, results=(results(1, this), results(2, other)), verdict=verdict)
    return summarise_comparison(cast(Any, SimpleNamespace(pipeline="tiny")), found, "base.yaml")


@pytest.fixture(autouse=True)
def _no_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "show_table", lambda *_: None)


@pytest.mark.parametrize(
    ("this", "other", "gap", "outcome", "words"),
    [
        ([0.4, 0.4], [0.5, 0.5], (-0.1, -0.2, -0.01), "better", "better: this less the other, paired over 2 seeds"),
        ([0.6, 0.6], [0.5, 0.5], (0.1, 0.01, 0.2), "worse", "worse: this less the other, paired over 2 seeds: +0.1000"),
        ([0.6, 0.6], [0.5, 0.5], (0.1, -0.01, 0.2), "undecided", "undecided: "),
        ([0.4, None], [0.5, 0.5], (-0.1, -0.2, -0.01), "worse", "this failed with 1 seed (it diverged)"),
        ([0.6, 0.6], [0.5, None], (0.1, 0.01, 0.2), "better", "the other failed with 1 seed (it diverged)"),
        ([None, None], [0.5, 0.5], None, "worse", "worse: this failed with 2 seeds (it diverged)"),
        ([None, 0.5], [0.5, None], None, "undecided", "undecided: this failed with 1 seed"),
    ],
)
def test_only_what_seeds_and_examples_tell_apart_is_better_or_worse(
    this: list[float | None],
    other: list[float | None],
    gap: tuple[float, float, float] | None,
    outcome: str,
    words: str,
) -> None:
    made = compared(this, other, gap)
    assert made.outcome == outcome and words in made.verdict
    assert (made.this.settings, made.other.settings) == (
        {"optimizer.lr": 0.5},
        {"optimizer.lr": BASE.training.optimizer.lr},
    )
    assert made.this.values == dict(enumerate(this)) and not made.is_same


def test_rows_of_a_few_keys_leave_it_undecided_and_the_verdict_says_why() -> None:
    made = compared([0.4, 0.4], [0.5, 0.5], (-0.1, -0.2, -0.01), num_keys=3)
    assert made.outcome == "undecided" and made.verdict.startswith("undecided by rows of 3 keys: this less the other")


def test_settings_that_do_not_differ_are_one_run() -> None:
    same = results(1, [0.5])
    found = SettingsComparison(settings=({}, {}), results=(same, same), verdict=None)
    made = summarise_comparison(cast(Any, SimpleNamespace(pipeline="tiny")), found, "base.yaml")
    assert made.is_same and made.outcome == "same" and "nothing to compare" in made.verdict


def test_settings_of_other_rows_or_without_examples_of_their_own_are_not_compared(tmp_path) -> None:
    import yaml

    plain = yaml.safe_load(PIPELINE)
    ranked = PipelineSpec.model_validate({**plain, "evaluation": {"ranking_share": 0.5}})
    with pytest.raises(ConfigError, match="none are reserved"):
        require_comparable(PipelineSpec.model_validate(plain), ranked, tmp_path)
    other = PipelineSpec.model_validate({**plain, "shards": {"heldout_fraction": 0.3}})
    with pytest.raises(ConfigError, match="its `shards` differs"):
        require_comparable(ranked, other, tmp_path)
    require_comparable(ranked, PipelineSpec.model_validate(plain), tmp_path)
    started = {**plain, "training": {**plain["training"], "start_from": {"model": "models:/tiny/1"}}}
    with pytest.raises(ConfigError, match="starts from a registered model"):
        require_comparable(ranked, PipelineSpec.model_validate(started), tmp_path)
    one_row = {**plain, "training": {**plain["training"], "global_batch_sequences": 1, "micro_batch_sequences": 1}}
    wide = ranked.model_copy(update={"launch": ranked.launch.model_copy(update={"ranks_per_node": 2})})
    with pytest.raises(ConfigError, match="its training is none for"):
        require_comparable(wide, PipelineSpec.model_validate(one_row), tmp_path)
