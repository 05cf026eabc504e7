"""Trials of one pipeline: alone in their folder, of what this machine trains, and none where a value cannot run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from headway.flows.tune.measuring import Tuner, why_no_cache, working_folder
from headway.flows.tune.report import compiled_line, micro_batch_line, rates_line
from headway.tasks.tuning.advice import Advice, LearningRates
from headway.training.config.training_spec import TrainingSpec
from headway.training.programs.tuning_request import TrialTimes, TuningAnswer, TuningTrial
from tests.flows.tiny_pipeline import PIPELINE


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


def times_of(step_s: float, rounds: int, *, warm_s: float = 1.0, state: str = "0") -> TrialTimes:
    return TrialTimes(
        step_s=(step_s,) * rounds, data_s=(0.0,), warm_s=(warm_s, 1.0), tensors_sha256=state, losses_sha256="1"
    )


def answer_of(*trials: TrialTimes) -> TuningAnswer:
    return TuningAnswer(num_steps=3, device="cpu", num_parameters=10, open_s=0.1, cached_bytes=0, trials=trials)


class Scripted(Tuner):
    """Answers of gangs in place of gangs.

    Args:
        steps_s: by number of ranks, or by bucket size; None: it cannot run.
        fits: the largest micro-batch that there is memory for.
    compiled: what a compiled model does; None: there is no compiler.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        steps_s: Mapping[int, float | None],
        folder: Path = Path(),
        fits: float = math.inf,
        compiled: TrialTimes | None = None,
    ) -> None:
        self._compiles_to = compiled
        self._pipeline = self._best = pipeline
        self._training, self._steps_s, self._rounds, self._digest = pipeline.training, steps_s, 3, ""
        self._folder, self._fits = folder, fits
        self._context = cast(Any, SimpleNamespace(ledger=SimpleNamespace(event=lambda *_, **__: None)))

    def _gang(
        self, pipeline: PipelineSpec, trials: Sequence[TuningTrial], *, rounds: int, num_saves: int = 0, **others: Any
    ) -> TuningAnswer:
        if others.get("lr_factors"):
            raise TrainingFailed("its weights are not finite.")
        if any(each.compile for each in trials):
            if self._compiles_to is None:
                raise TrainingFailed("InvalidCxxCompiler: no working C++ compiler.")
            return answer_of(times_of(1.0, rounds), self._compiles_to)
        found = [self._steps_s[pipeline.launch.world_size], *(self._steps_s[each.bucket_bytes] for each in trials[1:])]
        steps_s = [each for each in found if each is not None]
        if len(steps_s) < len(found) or any((each.micro_batch_sequences or 0) > self._fits for each in trials):
            raise TrainingFailed("out of\nmemory.")
        return answer_of(*(times_of(each, rounds) for each in steps_s))


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


def test_compiling_is_advised_only_where_it_leaves_the_bits_and_saves_a_run_more_than_it_takes(
    project: Path, tmp_path: Path
) -> None:
    pipeline = load_pipeline(project / "tiny.yaml")

    def advice(compiled: TrialTimes | None, **said: Any) -> Advice:
        training = TrainingSpec.model_validate(pipeline.training.model_dump(exclude_unset=True) | said)
        given = pipeline.model_copy(update={"training": training})
        return Scripted(given, {2: 1.0}, tmp_path / "work", compiled=compiled).advise()

    steps = pipeline.training.max_steps
    better = advice(times_of(0.5, 3, warm_s=0.5 * steps))
    assert better.compiled.is_better and better.compiled.compiling_s == 0.5 * steps - 1
    for told in (compiled_line(better), render_html(better)):
        assert "training: {compile: true}" in told and "Later steps are not proved" in told
    longer = advice(times_of(0.5, 3, warm_s=0.5 * steps + 1))
    assert not longer.compiled.is_better
    moved = advice(times_of(0.01, 3, state="2"))
    assert "stays: it moves bits: 3 steps come to state 0 without and 2 with it" in compiled_line(moved)
    assert "compile could not run: InvalidCxxCompiler" in compiled_line(advice(None))
    for said, why in (
        ({"compile": True}, "the pipeline file says it"),
        ({"compile": False}, "the pipeline file says it"),
        (
            {"parallel": {"replicate": 1, "shard": -1}, "optimizer": {"implementation": "foreach"}},
            "mode `exact` with `shard` takes none",
        ),
    ):
        assert compiled_line(advice(None, **said)) == f"stays: {why}"


def test_why_no_cache_is_tried_says_what_goes_through_it_and_what_opening_it_took() -> None:
    assert "nothing goes through it" in why_no_cache(0, [0.1, 0.2])
    told = why_no_cache(12_300_000, [2.0, 0.25, 0.5, 0.75])
    assert "all 12.3 MB of shards are in it before the first step" in told
    assert told.endswith("opening them took 2.00 s, 0.50 s since")
    assert why_no_cache(1, [2.0]).endswith("took 2.00 s")


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        ("ssh", ", ssh: {hosts: [a]}"),
        ("slurm", ""),
        ("kubernetes", ", kubernetes: {image: a, volumes: [{claim: c, mount_path: /w}]}"),
    ],
)
def test_ranks_that_another_launcher_starts_are_not_tuned_and_nothing_is_made(
    project: Path, headway: Callable[..., tuple[int, str]], launcher: str, more: str
) -> None:
    (project / "tiny.yaml").write_text(f"{PIPELINE}launch: {{launcher: {launcher}, nodes: 1{more}}}\n")
    code, told = headway("tune", "tiny.yaml")
    assert code == 2, told
    assert f"launch.launcher: ranks are launched by {launcher}, and what this machine measures says nothing" in told
    assert "Tune where retrains run, with `launcher: local`." in told
    assert not (project / "workspace").exists()
