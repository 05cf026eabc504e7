"""Trials of one pipeline: alone in their folder, and a value that cannot run is named and left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import RunBusy, TrainingFailed
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.request import TuneRequest
from headway.flows.tune import measuring
from headway.flows.tune.advice_page import render_html
from headway.flows.tune.measuring import Tuner, working_folder
from headway.flows.tune.report import micro_batch_line, rates_line
from headway.tasks.tuning.advice import Advice, LearningRates
from headway.training.config.training_spec import TrainingSpec
from headway.training.programs.tuning_request import TrialTimes, TuningAnswer, TuningTrial


def test_a_second_tune_is_refused_and_leaves_the_first_its_folder_and_lock(tmp_path: Path) -> None:
    folder = tmp_path / "tuning" / "work-tiny"
    with working_folder(folder):
        (folder / "001").mkdir()
        for _ in range(2):
            with pytest.raises(RunBusy, match="another process tunes this pipeline") as refused, working_folder(folder):
                pass
        assert "--wait" not in str(refused.value), "a tune has no such option"
        assert (folder / "001").is_dir()
    assert not folder.exists()


def test_what_a_killed_tune_left_is_in_nobodys_way(tmp_path: Path) -> None:
    folder = tmp_path / "tuning" / "work-tiny"
    (folder / "001").mkdir(parents=True)
    with working_folder(folder):
        assert not list(folder.iterdir())


def test_the_command_that_asks_again_keeps_the_rounds(project: Path) -> None:
    request = TuneRequest(pipeline="tiny.yaml", rounds=9)
    assert "--rounds 9" in request.command and "--advise" not in request.command
    assert "--advise" in request.model_copy(update={"advise": True}).command
    with pytest.raises(ValidationError):
        TuneRequest(pipeline="tiny.yaml", rounds=51)


class Scripted(Tuner):
    """Answers of gangs in place of gangs.

    Args:
        steps_s: by number of ranks, or by bucket size; None: it cannot run.
        fits: the largest micro-batch that there is memory for.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        steps_s: Mapping[int, float | None],
        folder: Path = Path(),
        fits: float = math.inf,
    ) -> None:
        self._pipeline = self._best = pipeline
        self._training, self._steps_s, self._rounds, self._digest = pipeline.training, steps_s, 3, ""
        self._folder, self._fits = folder, fits
        self._context = cast(Any, SimpleNamespace(ledger=SimpleNamespace(event=lambda *_, **__: None)))

    def _gang(
        self, pipeline: PipelineSpec, trials: Sequence[TuningTrial], *, rounds: int, num_saves: int = 0, **others: Any
    ) -> TuningAnswer:
        if others.get("lr_factors"):
            raise TrainingFailed("its weights are not finite.")
        found = [self._steps_s[pipeline.launch.world_size], *(self._steps_s[each.bucket_bytes] for each in trials[1:])]
        steps_s = [each for each in found if each is not None]
        if len(steps_s) < len(found) or any((each.micro_batch_sequences or 0) > self._fits for each in trials):
            raise TrainingFailed("out of\nmemory.")
        times = tuple(TrialTimes(step_s=(each,) * rounds, data_s=(0.0,), tensors_sha256="0") for each in steps_s)
        return TuningAnswer(num_steps=3, device="cpu", num_parameters=10, trials=times)


def test_a_number_of_ranks_that_cannot_run_is_named_and_the_others_are_compared(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "machine_here", lambda: SimpleNamespace(num_gpus=0, num_cores=2))
    pipeline = load_pipeline(project / "tiny.yaml")
    ranks = Scripted(pipeline, {2: 1.0, 1: None})._ranks()
    assert (ranks.taken, len(ranks.measured)) == ({}, 1)
    assert ranks.failed == ("1 rank could not run: out of\\nmemory.",)
    with pytest.raises(TrainingFailed):
        Scripted(pipeline, {2: None, 1: 1.0})._ranks()


def test_a_value_that_cannot_run_is_found_among_those_of_one_gang(project: Path) -> None:
    pipeline = load_pipeline(project / "tiny.yaml")
    now = pipeline.training.bucket_bytes
    tuner = Scripted(pipeline, {2: 1.0, 4096: 0.5, 8192: None})
    setting = tuner._compared("bucket size", "training.bucket_bytes", now, [4096, 8192], str)
    assert setting.taken == {"training.bucket_bytes": 4096}
    assert [each.shown for each in setting.measured] == [str(now), "4096"]
    assert setting.failed == ("8192 could not run: out of\\nmemory.",)
    broken = Scripted(pipeline, {2: None, 4096: 0.5})
    with pytest.raises(TrainingFailed):
        broken._compared("bucket size", "training.bucket_bytes", now, [4096], str)


@pytest.mark.parametrize(
    ("ramp", "tried"),
    [
        (None, [2, 4, 8, 16, 32]),
        ({"from_sequences": 8, "at_steps": [3, 7]}, [2, 4, 8]),
        ({"from_sequences": 8, "by": "noise_scale"}, [2, 4]),
    ],
)
def test_no_micro_batch_is_tried_that_the_first_batch_of_a_ramp_is_not_made_of(
    project: Path, ramp: dict[str, Any] | None, tried: list[int]
) -> None:
    pipeline = load_pipeline(project / "tiny.yaml")
    sizes = {"global_batch_sequences": 32, "micro_batch_sequences": 2, "batch_ramp": ramp}
    training = TrainingSpec.model_validate(pipeline.training.model_dump(mode="json") | sizes)
    launch = pipeline.launch.model_copy(update={"nodes": 1, "ranks_per_node": 1})
    tuner = Scripted(pipeline.model_copy(update={"training": training, "launch": launch}), {1: 1.0})
    assert tuner._micro_batch_sizes() == tried


def test_the_climb_of_micro_batches_ends_at_what_does_not_fit_or_says_that_larger_ones_were_not_tried(
    project: Path, tmp_path: Path
) -> None:
    pipeline = load_pipeline(project / "tiny.yaml")
    launch = pipeline.launch.model_copy(update={"nodes": 1, "ranks_per_node": 1})

    def advice(whole: int, fits: float = math.inf) -> Advice:
        sizes = {"global_batch_sequences": whole, "micro_batch_sequences": 2}
        training = TrainingSpec.model_validate(pipeline.training.model_dump(mode="json") | sizes)
        given = pipeline.model_copy(update={"training": training, "launch": launch})
        return Scripted(given, {1: 1.0}, tmp_path / "work", fits).advise()

    full = advice(256, fits=8)
    assert [(each.sequences, bool(each.failure)) for each in full.micro_batches] == [
        *((2, False), (4, False), (8, False)),
        (16, True),
    ]
    for told in (micro_batch_line(full), render_html(full)):
        assert "8 is the largest that ran" in told and "micro-batch 16 could not run: out of" in told
        assert "larger ones were not" not in told
    with pytest.raises(TrainingFailed):
        advice(256, fits=1)

    capped, whole = advice(128), advice(64)
    assert capped.largest.sequences == whole.largest.sequences == 64
    assert "32 times that of now was tried, larger ones were not" in micro_batch_line(capped)
    assert "larger ones were not" not in micro_batch_line(whole), "there is none that would cut the batch"
    assert "larger ones were not" not in micro_batch_line(advice(128, fits=32)), "the last that was tried did not fit"


def test_a_range_test_that_fails_is_told_and_leaves_the_rest_of_the_advice(project: Path, tmp_path: Path) -> None:
    pipeline = load_pipeline(project / "tiny.yaml")
    advice = Scripted(pipeline, {2: 1.0}, tmp_path / "work").advise()
    assert "the range test could not run: its weights are not finite." in rates_line(advice)
    assert "diverges" not in rates_line(advice)
    assert all(each.step_s == 1.0 for each in advice.micro_batches)
    assert "its weights are not finite." in render_html(advice)


def test_advice_on_a_rate_moves_the_rate_of_muons_matrices_with_it_as_the_range_test_did(project: Path) -> None:
    losses = tuple(2.0 - 0.01 * max(0, each - 20) for each in range(120))
    found = LearningRates(rates=tuple(0.001 * 1.1**each for each in range(120)), losses=losses)
    advice = Scripted(load_pipeline(project / "tiny.yaml"), {2: 1.0}, project / "work").advise()
    advice = advice.model_copy(update={"learning_rates": found, "learning_rate": 0.02, "matrix_lr": 0.05})
    assert ", derive: {optimizer.matrix_lr: 2.5 * optimizer.lr}`" in rates_line(advice)
    assert "derive" not in rates_line(advice.model_copy(update={"matrix_lr": None}))
