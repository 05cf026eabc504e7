"""Trials of settings: steps as in a run, of whatever length, with and without the compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import nn

from headway.training.config.batch_ramp import BatchRampSpec
from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.shards import TRAIN
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.learner import Learner
from headway.training.engine.run_documents import RunDocuments, load_run_documents
from headway.training.observe.heartbeat import Heartbeat
from headway.training.programs.tuning_request import TuningRequest, TuningTrial
from headway.training.programs.tuning_trials import _Trials
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.load import load_recipe


class NoLedger:
    def event(self, *_: object, **__: object) -> None:
        pass


def trials_of(project: Any, **changes: object) -> tuple[_Trials, TuningTrial]:
    documents = load_run_documents(project.workspace, project.publish_run().link)
    documents = replace(documents, training=documents.training.model_copy(update=changes))
    reader = ShardReader(project.workspace, documents.manifest, TRAIN)
    alone = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    trials = _Trials(documents, reader, alone, Heartbeat(cast(Any, NoLedger()), "tune"))
    return trials, TuningTrial(bucket_bytes=documents.training.bucket_bytes, loader=LoaderSpec())


def test_steps_past_the_end_of_a_run_go_by_its_last_learning_rate(shared_project, monkeypatch) -> None:
    trials, trial = trials_of(shared_project, max_steps=4)
    learner = trials._learner(trial)
    rates, update = list[float](), learner.update
    monkeypatch.setattr(learner, "update", lambda *arguments: rates.append(update(*arguments)))
    with trials._stepping(learner, trial, 8) as step:
        for _ in range(8):
            step(None)
    assert rates[3:] == rates[3:4] * 5 and min(rates) >= 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in learner.tensors().values())


def test_rates_are_tried_at_the_batch_that_a_run_begins_with(shared_project, tiny_training, monkeypatch) -> None:
    small = tiny_training.global_batch_sequences
    ramp = BatchRampSpec(from_sequences=small, at_steps=(2,))
    trials, trial = trials_of(shared_project, batch_ramp=ramp, global_batch_sequences=2 * small)
    sizes, backward = list[int](), Learner.backward

    def counted(learner: Learner, step: int, micro_batches: Any, num_replicas: int) -> Any:
        sizes.append(len(micro_batches) * tiny_training.micro_batch_sequences)
        return backward(learner, step, micro_batches, num_replicas)

    monkeypatch.setattr(Learner, "backward", counted)
    assert len(trials._range_test(trial, (1e-3, 1e-2, 1e-1))) == 3
    assert sizes == [small] * 3


def of_one_matrix(documents: RunDocuments) -> Any:
    """The run's recipe with a model whose only sums are products of matrices, which no compiler orders anew."""
    recipe = cast(Any, load_recipe(documents.training.recipe.name, documents.training.recipe.model, documents.shape))
    size = recipe.build().embedding.num_embeddings
    recipe.build = lambda: nn.Sequential(nn.Embedding(size, 8), nn.ReLU(), nn.Linear(8, size, bias=False))
    return recipe


@pytest.mark.long
def test_a_model_whose_kernels_the_compiler_leaves_comes_to_the_same_bits_compiled(
    shared_project, monkeypatch, tmp_path
) -> None:
    """One whose kernels it fuses: `tests/e2e/test_tune.py`."""
    monkeypatch.setattr(RunDocuments, "recipe", of_one_matrix)
    trials, trial = trials_of(shared_project)
    request = TuningRequest(trials=(trial, trial.model_copy(update={"compile": True})), rounds=2, num_steps=4)
    plain, compiled = trials.answer(request, tmp_path, 0.0).trials
    assert (plain.tensors_sha256, plain.losses_sha256) == (compiled.tensors_sha256, compiled.losses_sha256)
    first_s, later_s = compiled.warm_s
    assert first_s > max(later_s, *plain.warm_s), "it compiles once, before the steps that count"
