"""Whatever ranks do, they run the frozen code and look for shards where the launch said."""

from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.store.documents import Registration
from headway.tasks.core import gangs
from headway.tasks.core.candidate import Candidate, read_candidate
from headway.tasks.core.gangs import gang_for
from headway.tasks.registry.model_export import export_graph
from headway.tasks.stages import launch, verify
from headway.tasks.stages.scoring import ScoringHarness
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.execution import as_launched
from headway.training.config.loader_spec import LoaderSpec, loader_spec
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import Gang, LaunchSpec
from tests.tasks.core.test_slow_ranks import SLOW

SAVING = CheckpointSpec(every_steps=7)
LAUNCH = LaunchSpec(loader=LoaderSpec(cache_folder="/fast/disk", cache_bytes=12345))


class Started(Exception):
    """Instead of a gang."""


@pytest.fixture
def candidate(context, register) -> Candidate:
    registration = context.workspace.load(register(1)[0], Registration)
    context.workspace.publish("code/none.zip", b"")
    return read_candidate(context.workspace, registration.checkpoint)


@pytest.fixture
def started(context, candidate: Candidate, monkeypatch: pytest.MonkeyPatch) -> list[Gang]:
    """The gangs that would have been started."""
    seen: list[Gang] = []

    def supervise(_spec: LaunchSpec, gang: Gang, **_: Any) -> None:
        seen.append(gang)
        raise Started

    monkeypatch.setenv("HEADWAY_LOCAL", "/local/sides")
    monkeypatch.setattr(gangs, "supervise", supervise)
    monkeypatch.setattr(launch, "_context_tokens", lambda *_: 1)
    monkeypatch.setattr(launch, "SeriesShipper", lambda *_, **__: Quiet())
    monkeypatch.setattr(verify, "final_checkpoint", lambda *_: (candidate.folder, candidate.manifest))
    return seen


class Quiet:
    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def add(self, event: object) -> None:
        raise AssertionError(f"no rank runs here, and none said {event}")


def train(context, candidate: Candidate) -> None:
    settled = ResolvedStart(candidate.run, "")
    launch._train(context, TrainingSpec(max_steps=10, checkpoints=SAVING), LAUNCH, settled, "")


def prove(context, candidate: Candidate) -> None:
    verify._prove(context, LAUNCH, candidate.run.link, candidate.manifest)


def score(context, candidate: Candidate) -> None:
    bench = ScoringHarness(context=context, launch=LAUNCH, shards=None, source=None)  # type: ignore[arg-type]
    bench._run_ranks(candidate, candidate.run.manifest, baselines=True)


def export(context, candidate: Candidate) -> None:
    export_graph(context, LAUNCH, candidate)


@pytest.mark.parametrize("work", [train, prove, score, export])
def test_every_gang_is_told_where_shards_are_kept(context, candidate, started: list[Gang], work: Any) -> None:
    with pytest.raises(Started):
        work(context, candidate)
    (gang,) = started
    assert loader_spec(gang.environment) == LAUNCH.loader
    assert gang.environment["HEADWAY_LOCAL"] == "/local/sides"
    # Of the pipeline file as it is now, whatever the run was described with.
    launched = as_launched(TrainingSpec(), gang.environment)
    assert launched.checkpoints == (SAVING if work is train else TrainingSpec().checkpoints)


def test_ranks_import_the_frozen_code_first(context, candidate: Candidate) -> None:
    gang = gang_for(
        context, LAUNCH, candidate.run, "headway.training.programs.worker", context.scratch, "--more", "x", nodes=2
    )
    assert gang.import_path == (str(context.workspace.local_path("code/none.zip")),)
    assert gang.arguments[:4] == ("--workspace", context.workspace.uri, "--run-spec", candidate.run.sha256)
    assert (gang.arguments[-2:], gang.world_size) == (("--more", "x"), 2)


def test_a_slow_rank_is_shown_once_however_many_runs_train_at_a_time(
    context, candidate: Candidate, started: list[Gang], shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_slow(*_: Any, **__: Any) -> None:
        context.ledger.event("rank.slow", **SLOW)

    monkeypatch.setattr(gangs, "supervise", be_slow)
    monkeypatch.setattr(launch, "result_files", lambda *_: ())
    settled = ResolvedStart(candidate.run, "")
    beside = launch.watched_training(context, TrainingSpec(max_steps=10), LAUNCH, settled, "", "another")
    with beside:
        train(context, candidate)
    assert len(shown) == 1
