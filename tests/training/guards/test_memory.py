"""Out of memory: the micro-batch is halved for all ranks and the global batch kept; exact mode stops with advice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.errors import Superseded
from headway.training.checkpoint.inexactness import inexactness
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.guards.memory import (
    NOTE_NAME,
    SmallerMicroBatch,
    explaining_out_of_memory,
    largest_tensors,
    out_of_memory,
    remember_allocations,
    what_took_memory,
    with_noted_micro_batch,
)
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.ranks.distributed import ProcessGroup
from tests.training.attempts import begin

CPU = torch.device("cpu")
ALONE = ProcessGroup(rank=0, world_size=1, device=CPU)
FAST = ParallelSpec(mode="fast")
HUNGRY = '''
"""The language model on a machine where a rank's memory holds one row at a time."""

import os

import torch

from headway.training.recipes.language_model import LanguageModel


class Hungry(LanguageModel):
    def build(self):
        self.require(os.environ.get("HUNGRY") != "build")
        return super().build()

    def losses(self, model, batch):
        too_much = model.training and "HUNGRY" not in os.environ or os.environ.get("HUNGRY") == "proof"
        self.require(len(batch["tokens"]) < 2 or not too_much)
        return super().losses(model, batch)

    def require(self, fits):
        if not fits and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
'''


@pytest.fixture
def hungry(tiny_training: TrainingSpec, tmp_path: Path):
    """A configuration for it, in a folder where ranks find the recipe."""
    (tmp_path / "hungry_recipe.py").write_text(HUNGRY)

    def make(parallel: ParallelSpec) -> TrainingSpec:
        recipe = RecipeSpec(name="hungry_recipe:Hungry", model=tiny_training.recipe.model)
        return tiny_training.model_copy(update={"recipe": recipe, "parallel": parallel})

    return make


@pytest.mark.process
def test_one_rank_out_of_memory_halves_every_ranks_micro_batch_in_the_next_attempt(project, hungry, tmp_path):
    run = project.publish_run(hungry(FAST))

    first = project.train(run, tmp_path, world_size=2)

    assert all(first), "no rank is left waiting"
    marker = AttemptFiles(max(tmp_path.glob("attempts/*"))).read_markers()[1]
    assert (marker.failure.cause, marker.failure.retryable) == ("oom", True)
    assert "The next attempt takes 1" in marker.failure.advice
    report = json.loads((max(tmp_path.glob("attempts/*")) / "memory-1.json").read_bytes())
    assert report["tensors"][0]["bytes"] > 0

    assert project.train(run, tmp_path, world_size=2) == [0, 0]
    steps = [event for event in project.events(tmp_path) if event["event"] == "step"]
    assert [step["window"] for step in steps] == list(range(6)), "the global batch is what it was"
    assert {step["tokens"] for step in steps} == {8 * 16}
    (marked,) = [event["what"] for event in project.events(tmp_path) if event["event"] == "run.inexact"]
    assert "micro-batch halved to 1" in marked
    kept = [read_manifest(path).scalars for path in (tmp_path / "checkpoints").iterdir()]
    assert {inexactness(scalars) for scalars in kept} == {"micro-batch halved to 1 when memory ran out"}

    (tmp_path / NOTE_NAME).unlink()
    (tmp_path / "result.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000006")
    assert project.train(run, tmp_path, world_size=2, HUNGRY="no longer") == [0, 0]
    assert "halved" in inexactness(read_manifest(tmp_path / "checkpoints" / "step-00000006").scalars), (
        "once and for all"
    )


@pytest.mark.process
@pytest.mark.parametrize(("hungry_for", "advice"), [("build", "Split the model"), ("proof", "next attempt takes 1")])
def test_out_of_memory_before_the_first_step_is_explained_too_and_halves_only_what_can_help(
    project, hungry, tmp_path, hungry_for, advice
):
    assert all(project.train(project.publish_run(hungry(FAST)), tmp_path, world_size=2, HUNGRY=hungry_for))

    files = AttemptFiles(max(tmp_path.glob("attempts/*")))
    marker = files.read_markers()[1]
    assert marker.failure.cause == "oom" and advice in marker.failure.advice
    assert marker.failure.retryable == (tmp_path / NOTE_NAME).exists() == (hungry_for == "proof")
    assert json.loads(files.memory(1).read_bytes())["tensors"]


@pytest.mark.process
def test_in_exact_mode_it_ends_the_run_with_advice(project, hungry, tmp_path):
    run = project.publish_run(hungry(ParallelSpec()))

    codes = project.train(run, tmp_path, world_size=2)

    assert codes[1] == 6 and codes[0] != 0
    marker = AttemptFiles(max(tmp_path.glob("attempts/*"))).read_markers()[1]
    assert (marker.failure.cause, marker.failure.retryable) == ("oom", False)
    assert "Set training.micro_batch_sequences to 1" in marker.failure.advice
    assert not (tmp_path / NOTE_NAME).exists()


def test_a_note_halves_again_and_again_down_to_one_row(tiny_training, tmp_path):
    spec = tiny_training.model_copy(update={"parallel": FAST, "micro_batch_sequences": 4})
    for rows in (2, 1):
        assert out_of_memory(MemoryError(), spec, tmp_path).retryable
        spec = with_noted_micro_batch(spec, tmp_path, ALONE)
        assert (spec.micro_batch_sequences, spec.global_batch_sequences) == (rows, 8)
    last = out_of_memory(MemoryError(), spec, tmp_path)
    assert not last.retryable and last.exit_code == 6


def test_who_is_superseded_even_just_before_it_would_leave_a_note_leaves_none(tiny_training, tmp_path, monkeypatch):
    def run_out(fence):
        report = tmp_path / "memory.json"
        with explaining_out_of_memory(spec, tmp_path, report=report, device=CPU, of_batches=True, fence=fence):
            raise MemoryError

    def replace(path, target):
        fences.append(begin(tmp_path, 2))
        return real(path, target)

    spec = tiny_training.model_copy(update={"parallel": FAST})
    fences, real = [begin(tmp_path, 1)], Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Superseded, match="attempt 2 has started"):
            run_out(fences[0])
    assert not (tmp_path / NOTE_NAME).exists()
    with pytest.raises(SmallerMicroBatch):
        run_out(fences[1])
    assert with_noted_micro_batch(spec, tmp_path, ALONE).micro_batch_sequences == 1


def test_without_a_note_nothing_changes(tiny_training, tmp_path):
    assert with_noted_micro_batch(tiny_training, tmp_path, ALONE) == tiny_training


def test_the_report_names_the_largest_tensors_and_counts_what_shares_memory_once():
    large = torch.zeros(1234, 1000)
    view = large.view(-1)
    shown = [each for each in largest_tensors() if each["bytes"] == large.untyped_storage().nbytes()]
    assert len(shown) == 1 and view.numel() == 1234 * 1000


def test_the_report_passes_over_tensors_that_wrap_others_and_have_no_memory():
    class Wrapper(torch.Tensor):
        """As DTensor is one."""

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError

    wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, (3, 4))
    with pytest.raises(RuntimeError):
        wrapper.untyped_storage().data_ptr()
    assert all(each["kind"] != "Wrapper" for each in largest_tensors())
    assert wrapper.shape == (3, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_report_tells_the_allocators_history_and_who_asked():
    device = torch.device("cuda", 0)
    remember_allocations(device)
    gone = torch.zeros(12345, device=device)
    del gone
    told = [entry for entry in what_took_memory(device)["history"] if entry["action"] == "alloc"]
    assert told and any(frame["filename"] == __file__ for frame in told[-1]["frames"])
