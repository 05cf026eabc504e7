"""The champion is judged by what its registration names, whatever has become of its run since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import IntegrityError
from headway.tasks.core.candidate import Candidate
from headway.tasks.stages.scoring import ScoringHarness
from headway.training.observe.ledger import Event


@dataclass
class Judging:
    bench: ScoringHarness
    champion: Link
    candidate: Candidate
    """The champion's own checkpoint."""
    events: list[Event]

    @property
    def today(self) -> RunSpec:
        return self.candidate.run

    def named(self, event: str) -> list[Event]:
        return [seen for seen in self.events if seen["event"] == event]


@pytest.fixture
def evaluation(project, forked_gangs) -> Iterator[Judging]:
    """The flow's surroundings after a first retrain, without Prefect."""
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows.config.request import RetrainRequest
    from headway.flows.run.session import session, watchers
    from headway.tasks.core.candidate import read_candidate
    from headway.tasks.registry import model_refs

    events: list[Event] = []
    token = watchers.set((events.append,))
    request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    try:
        with session(request) as (context, spec):
            now = model_refs.champion(context.workspace, "tiny")
            assert now is not None
            candidate = read_candidate(context.workspace, now[1].checkpoint)
            bench = ScoringHarness(context=context, launch=spec.launch, shards=spec.shards, source=spec.source)
            yield Judging(bench, now[0].target, candidate, events)
    finally:
        watchers.reset(token)


def tensors_of(project) -> Path:
    path: Path = project.file("runs/*/checkpoints/step-00000120/tensors-00001-of-00002.safetensors")
    return path


def test_it_is_scored_from_the_checkpoint_that_its_registration_names(evaluation: Judging, project) -> None:
    before = evaluation.bench.score(evaluation.candidate)
    result = project.run_dir() / "result.json"
    older = project.file("runs/*/checkpoints/step-00000100/manifest.sha256").read_text().strip()
    result.write_text(json.dumps({**json.loads(result.read_bytes()), "step": 100, "manifest_sha256": older}))
    after = evaluation.bench.score_champion(evaluation.champion, evaluation.today)
    assert after.sums["nats"].tolist() == before.sums["nats"].tolist(), "bit for bit"
    assert evaluation.named("champion.damaged") == []


@pytest.mark.parametrize("fate", ["altered", "gone"])
def test_with_its_checkpoint_lost_its_registered_model_is_scored_and_the_ledger_says_which_file(
    evaluation: Judging, project, flip_one_bit, fate: str
) -> None:
    before = evaluation.bench.score(evaluation.candidate)
    tensors = tensors_of(project)
    flip_one_bit(tensors) if fate == "altered" else tensors.unlink()
    after = evaluation.bench.score_champion(evaluation.champion, evaluation.today)
    assert after.examples == before.examples
    assert after.sums["nats"] == pytest.approx(before.sums["nats"], rel=1e-5)
    (told,) = evaluation.named("champion.damaged")
    assert tensors.name in told["message"]


def test_with_both_lost_nothing_is_judged_and_the_error_names_both(evaluation: Judging, project, flip_one_bit) -> None:
    flip_one_bit(tensors_of(project))
    graph: Path = project.file("models/tiny/*/artifacts/model.pt2")
    flip_one_bit(graph)
    with pytest.raises(IntegrityError) as caught:
        evaluation.bench.score_champion(evaluation.champion, evaluation.today)
    assert tensors_of(project).name in str(caught.value) and graph.name in str(caught.value)
    assert "Put one of the two back" in caught.value.advice


def test_a_candidate_whose_checkpoint_changed_since_it_was_verified_is_not_scored(
    evaluation: Judging, project, flip_one_bit
) -> None:
    flip_one_bit(tensors_of(project))
    with pytest.raises(IntegrityError, match=tensors_of(project).name):
        evaluation.bench.score(evaluation.candidate)


def test_todays_documents_under_its_own_encoder_are_told_apart_from_todays_shards(evaluation: Judging) -> None:
    from headway.tasks.stages.launch import describe_run
    from headway.tasks.stages.shard import current_fitted_state, shards_under
    from headway.training.config.training_spec import TrainingSpec

    bench, context = evaluation.bench, evaluation.bench.context
    manifest = context.workspace.load(evaluation.today.manifest, ShardManifest)
    encoder = bench.shards.encoder.model_copy(update={"vocab_size": 310})
    other = ScoringHarness(
        context=context,
        launch=bench.launch,
        shards=bench.shards.model_copy(update={"encoder": encoder}),
        source=bench.source,
    )
    fitted = current_fitted_state(context, other.shards, other.source, manifest.snapshot, manifest.receipt)
    shards = shards_under(context, other.shards, other.source, manifest.snapshot, manifest.receipt, fitted)
    today = describe_run(context, TrainingSpec.model_validate(evaluation.today.config), shards).run
    assert today.fitted != evaluation.today.fitted
    scores = other.score_champion(evaluation.champion, today)
    assert scores.sums["nats"].tolist() == bench.score(evaluation.candidate).sums["nats"].tolist()
    assert [event["found"] for event in evaluation.named("stage.shard") if "found" in event] == [False]
    assert [event["found"] for event in evaluation.named("evaluate.champion_shards") if "found" in event] == [True]
