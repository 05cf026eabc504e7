"""The best two trials are told apart over keys where rows of one key are alike, and by no fewer than ten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.rows.heldout_parts import Parts
from headway.tasks.stages import finalists as module
from headway.tasks.stages import trial_scores
from headway.tasks.stages.finalists import FinalistsVerdict
from headway.tasks.stages.trial_scores import TrialScore
from headway.training.evaluation.measures import CLASSES
from headway.training.programs.evaluation import Scores
from tests.tasks.conftest import link

NUM_ROWS = 300


def bench(nats: dict[str, np.ndarray], keys: np.ndarray | None) -> Any:
    def score(candidate: Any, **_: Any) -> Scores:
        sums = {"nats": nats[candidate.name], "targets": np.ones(NUM_ROWS), "correct": np.ones(NUM_ROWS)}
        examples = tuple(f"row {number:09d}" for number in range(NUM_ROWS))
        return Scores(examples=examples, slices=examples, sums=sums, baselines={})

    return SimpleNamespace(
        context=SimpleNamespace(workspace=None),
        metric_set=lambda run: CLASSES,
        score=score,
        parted=lambda *_: Parts(ranking=[*range(100, NUM_ROWS)], evaluation=[*range(100)]),
        keys_of=lambda *_: keys,
        compared_examples_sha256=lambda *_: "0" * 64,
    )


@pytest.mark.parametrize(
    ("num_keys", "is_decided"), [(NUM_ROWS, True), (9, False), (30, False)], ids=["alone", "few keys", "as unsure"]
)
def test_two_that_differ_on_rows_of_a_few_keys_are_not_told_apart(
    monkeypatch: pytest.MonkeyPatch, num_keys: int, is_decided: bool
) -> None:
    draw = np.random.default_rng(3)
    keys = np.arange(NUM_ROWS, dtype=np.uint64) % num_keys
    # Of each key one of the two is better, on all its rows.
    gap = draw.normal(0.06, 0.4, num_keys)[keys] + (0 if num_keys == 30 else 0.05)
    nats = {"one": np.full(NUM_ROWS, 1.0), "two": 1.0 + gap}
    run = SimpleNamespace(link=link("run"))

    def candidate(workspace: Any, of: Any) -> Any:
        name = "one" if of == link("one") else "two"
        return SimpleNamespace(name=name, run=run, manifest=SimpleNamespace(files=()))

    monkeypatch.setattr(module, "read_candidate", candidate)
    monkeypatch.setattr(trial_scores, "read_candidate", candidate)
    made = bench(nats, keys)
    scoring: Any = SimpleNamespace(evaluation=EvaluationSpec(ranking_share=0.5), harness=lambda context: made)
    context: Any = SimpleNamespace(workspace=None, at=SimpleNamespace(run=""))
    verdict = module._compare(context, scoring, [0], [[link("one"), link("two")]], [[], []]).document
    assert isinstance(verdict, FinalistsVerdict)
    assert verdict.is_decided is is_decided
    assert verdict.num_keys == (0 if num_keys == NUM_ROWS else num_keys)
    score = trial_scores._score(made, scoring.evaluation, link("two")).document
    assert isinstance(score, TrialScore)
    assert score.num_keys == verdict.num_keys and score.has_few_keys is verdict.has_few_keys
