"""Trials of settings: steps as in a run, of whatever length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.shards import TRAIN
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.run_documents import load_run_documents
from headway.training.observe.heartbeat import Heartbeat
from headway.training.programs.tuning_request import TuningTrial
from headway.training.programs.tuning_trials import _Trials
from headway.training.ranks.distributed import ProcessGroup


class NoLedger:
    def event(self, *_: object, **__: object) -> None:
        pass


def test_steps_past_the_end_of_a_run_go_by_its_last_learning_rate(shared_project, monkeypatch) -> None:
    documents = load_run_documents(shared_project.workspace, shared_project.publish_run().link)
    documents = replace(documents, training=documents.training.model_copy(update={"max_steps": 4}))
    reader = ShardReader(shared_project.workspace, documents.manifest, TRAIN)
    alone = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    trials = _Trials(documents, reader, alone, Heartbeat(cast(Any, NoLedger()), "tune"))
    trial = TuningTrial(bucket_bytes=documents.training.bucket_bytes, loader=LoaderSpec())
    learner = trials._learner(trial)
    rates, update = list[float](), learner.update
    monkeypatch.setattr(learner, "update", lambda *arguments: rates.append(update(*arguments)))
    with trials._stepping(learner, trial, 8) as step:
        for _ in range(8):
            step(None)
    assert rates[3:] == rates[3:4] * 5 and min(rates) >= 0
    assert all(bool(torch.isfinite(tensor).all()) for tensor in learner.tensors().values())
