"""The champion is judged by what its registration names, whatever has become of its run since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from data_contracts.documents import Link, RunSpec, ShardManifest
from data_contracts.errors import IntegrityError
from tasks.candidate import Candidate
from tasks.scoring import Bench
from training.ledger import Event

pytestmark = pytest.mark.slow


@dataclass
class Judging:
    bench: Bench
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
def judging(project, forked_gangs) -> Iterator[Judging]:
    """The flow's surroundings after a first retrain, without Prefect."""
    from flows.environment import prepare

    prepare()
    from flows.request import RetrainRequest
    from flows.session import session, watchers
    from tasks import model_refs
    from tasks.candidate import read_candidate

    events: list[Event] = []
    token = watchers.set((events.append,))
    request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    try:
        with session(request) as (context, spec):
            now = model_refs.champion(context.workspace, "tiny")
            assert now is not None
            candidate = read_candidate(context.workspace, now[1].checkpoint)
            bench = Bench(context=context, launch=spec.launch, shards=spec.shards, source=spec.source)
            yield Judging(bench, now[0].target, candidate, events)
    finally:
        watchers.reset(token)


def tensors_of(project) -> Path:
    path: Path = project.file("runs/*/checkpoints/step-00000120/tensors-00001-of-00002.safetensors")
    return path


def test_it_is_scored_from_the_checkpoint_that_its_registration_names(judging: Judging, project) -> None:
    before = judging.bench.score(judging.candidate)
    result = project.run_dir() / "result.json"
    older = project.file("runs/*/checkpoints/step-00000100/manifest.sha256").read_text().strip()
    result.write_text(json.dumps({**json.loads(result.read_bytes()), "step": 100, "manifest_sha256": older}))
    after = judging.bench.score_champion(judging.champion, judging.today)
    assert after.sums["nats"].tolist() == before.sums["nats"].tolist(), "bit for bit"
    assert judging.named("champion.damaged") == []


@pytest.mark.parametrize("fate", ["altered", "gone"])
def test_with_its_checkpoint_lost_its_registered_model_is_scored_and_the_ledger_says_which_file(
    judging: Judging, project, flip_one_bit, fate: str
) -> None:
    before = judging.bench.score(judging.candidate)
    tensors = tensors_of(project)
    flip_one_bit(tensors) if fate == "altered" else tensors.unlink()
    after = judging.bench.score_champion(judging.champion, judging.today)
    assert after.examples == before.examples
    assert after.sums["nats"] == pytest.approx(before.sums["nats"], rel=1e-5)
    (told,) = judging.named("champion.damaged")
    assert tensors.name in told["message"]


def test_with_both_lost_nothing_is_judged_and_the_error_names_both(judging: Judging, project, flip_one_bit) -> None:
    flip_one_bit(tensors_of(project))
    graph: Path = project.file("models/tiny/*/artifacts/model.pt2")
    flip_one_bit(graph)
    with pytest.raises(IntegrityError) as caught:
        judging.bench.score_champion(judging.champion, judging.today)
    assert tensors_of(project).name in str(caught.value) and graph.name in str(caught.value)
    assert "Put one of the two back" in caught.value.advice


def test_a_candidate_whose_checkpoint_changed_since_it_was_verified_is_not_scored(
    judging: Judging, project, flip_one_bit
) -> None:
    flip_one_bit(tensors_of(project))
    with pytest.raises(IntegrityError, match=tensors_of(project).name):
        judging.bench.score(judging.candidate)


def test_todays_documents_under_its_own_encoder_are_told_apart_from_todays_shards(judging: Judging) -> None:
    from tasks.launch import describe_run
    from tasks.shard import current_fitted_state, shards_under
    from training.config import TrainingSpec

    bench, context = judging.bench, judging.bench.context
    manifest = context.workspace.load(judging.today.manifest, ShardManifest)
    encoder = bench.shards.encoder.model_copy(update={"vocab_size": 310})
    other = Bench(
        context=context,
        launch=bench.launch,
        shards=bench.shards.model_copy(update={"encoder": encoder}),
        source=bench.source,
    )
    fitted = current_fitted_state(context, other.shards, other.source, manifest.snapshot, manifest.receipt)
    shards = shards_under(context, other.shards, other.source, manifest.snapshot, manifest.receipt, fitted)
    today = describe_run(context, TrainingSpec.model_validate(judging.today.config), shards).run
    assert today.fitted != judging.today.fitted
    scores = other.score_champion(judging.champion, today)
    assert scores.sums["nats"].tolist() == bench.score(judging.candidate).sums["nats"].tolist()
    assert [event["found"] for event in judging.named("stage.shard") if "found" in event] == [False]
    assert [event["found"] for event in judging.named("evaluate.champion_shards") if "found" in event] == [True]
