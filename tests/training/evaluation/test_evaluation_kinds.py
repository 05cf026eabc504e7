"""What is not text goes the same way: trained by real ranks, scored on the held-out rows, beside a simple model."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.shards import ShardSpec, TabularEncoderSpec, TokenIdsSpec
from headway.training.config.training_spec import RecipeSpec, ScheduleSpec, TrainingSpec
from headway.training.data.encode.packing import PAD_ID
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards.splits import SourceRows
from headway.training.evaluation.measures import metric_set_of
from headway.training.observe.ledger import Ledger
from headway.training.programs.evaluation import EvaluationRequest, Scores, evaluate_share, merge, part_name
from headway.training.programs.verify_worker import prove

NUM_STEPS = 30


def table(columns: dict[str, pa.Array]):
    yield pa.RecordBatch.from_pydict(columns)


def rows_of(path: str, columns: dict[str, pa.Array]) -> SourceRows:
    num_rows = len(next(iter(columns.values())))
    digest = sha256_bytes(path.encode())
    return SourceRows(path, digest, 1, num_rows, np.zeros(0, dtype=np.int64), partial(table, columns))


def trained_scores(project: Any, recipe: RecipeSpec, folder: Path, world_size: int = 2) -> Scores:
    """Of a run of a few steps on two ranks."""
    training = TrainingSpec(
        recipe=recipe,
        schedule=ScheduleSpec(warmup_steps=2),
        max_steps=NUM_STEPS,
        global_batch_sequences=16,
        micro_batch_sequences=8,
        checkpoints=CheckpointSpec(every_steps=NUM_STEPS),
    )
    run = project.publish_run(training)
    assert project.train(run, folder / "run", world_size=2) == [0, 0], project.log(folder / "run")
    request = EvaluationRequest(
        checkpoint=str(folder / f"run/checkpoints/step-{NUM_STEPS:08d}"),
        run=run.sha256,
        manifest=project.manifest.sha256,
    )
    for number in range(world_size):
        rank = SimpleNamespace(rank=number, world_size=world_size, ledger=Ledger(folder / "ledger"))
        (folder / part_name(number)).write_bytes(canonical_json(evaluate_share(rank, project.workspace, request)))
    return merge(folder, world_size)


@pytest.fixture
def ids(new_project, tmp_path: Path):
    """Two tables of token lists; each token is the one before last plus 3, modulo 16, which no bigram sees."""
    documents = {}
    for name in ("a.parquet", "b.parquet"):
        draw = np.random.default_rng(len(documents))
        lists = []
        for _ in range(60):
            tokens = draw.integers(0, 16, 2).tolist()
            while len(tokens) < 24:
                tokens.append((tokens[-2] + 3) % 16)
            lists.append(tokens)
        documents[name] = lists
    sources = [rows_of(name, {"tokens": pa.array(lists, pa.list_(pa.int32()))}) for name, lists in documents.items()]
    spec = ShardSpec(
        encoder=TokenIdsSpec(vocab_size=16, sequence_tokens=12), num_groups=2, heldout_fraction=0.3, split_by="row"
    )
    return new_project(tmp_path / "workspace", {}, sources, spec)


@pytest.mark.process
def test_ids_given_by_the_source_are_judged_by_the_token_document_by_document(ids, tmp_path: Path) -> None:
    scores = trained_scores(ids, RecipeSpec(model={"width": 32, "depth": 1, "heads": 2, "hidden": 32}), tmp_path)
    heldout = ShardReader(ids.workspace, ids.manifest, "heldout")
    num_targets = int((heldout.gather(np.arange(heldout.num_rows))["tokens"][:, 1:] != PAD_ID).sum())
    num_documents = sum(group.num_samples for group in ids.manifest.groups if group.split == "heldout")
    assert set(scores.sums) == {"nats", "targets"}
    assert scores.sums["targets"].sum() == num_targets
    # 24 tokens and an end marker each; the first marker of a group is never a target.
    assert len(scores.examples) == num_documents and set(scores.sums["targets"]) <= {24.0, 25.0}
    assert scores.examples[0] == "a.parquet #000000000" and len(set(scores.examples)) == num_documents
    metric_set = metric_set_of(ids.manifest.spec["encoder"])
    own, bigram = (metric_set.decisive.value(sums) for sums in (scores.sums, scores.baselines["bigram"]))
    assert metric_set.decisive.name == "bits_per_token"
    assert own == pytest.approx(math.fsum(scores.sums["nats"]) / math.log(2) / num_targets)
    assert 0 < own < bigram < 5


@pytest.fixture
def diabetes(new_project, tmp_path: Path):
    """The progression of a disease, 25 to 346, from ten measurements: the table that comes with scikit-learn."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    columns = {name: pa.array(data.data[:, place]) for place, name in enumerate(data.feature_names)}
    encoder = TabularEncoderSpec(numeric=tuple(columns), label="progression", label_kind="number")
    sources = [rows_of("diabetes.csv", columns | {"progression": pa.array(data.target)})]
    spec = ShardSpec(encoder=encoder, num_groups=1, heldout_fraction=0.3, split_by="row")
    return new_project(tmp_path / "workspace", {}, sources, spec)


@pytest.mark.process
def test_a_number_is_predicted_better_than_by_its_mean_and_judged_in_its_own_unit(diabetes, tmp_path: Path) -> None:
    recipe = RecipeSpec(name="tabular-regressor", model={"width": 32, "depth": 1})
    scores = trained_scores(diabetes, recipe, tmp_path)
    readers = [ShardReader(diabetes.workspace, diabetes.manifest, split) for split in ("train", "heldout")]
    train, heldout = (
        reader.gather(np.arange(reader.num_rows))["label"].astype(np.float64).ravel() for reader in readers
    )
    assert diabetes.fitted.statistics["label"]["mean"] == pytest.approx(train.mean(), rel=1e-6)
    assert diabetes.fitted.statistics["label"]["deviation"] == pytest.approx(train.std(), rel=1e-6)
    mean_error, rmse, r2 = metric_set_of(diabetes.manifest.spec["encoder"]).measures
    baseline = scores.baselines["training mean"]
    assert mean_error.value(baseline) == pytest.approx(np.square(heldout - train.mean()).mean())
    assert r2.value(baseline) == pytest.approx(1 - mean_error.value(baseline) / heldout.var())
    assert r2.value(scores.sums) > 0.25 > r2.value(baseline)
    assert 0.3 < r2.value(scores.baselines["linear model"]) < 0.6, "a straight line does well on this table"
    assert rmse.value(scores.sums) == pytest.approx(math.sqrt(mean_error.value(scores.sums)))
    names, sizes = np.unique(scores.slices, return_counts=True)
    assert [name.partition(":")[0] for name in names] == [f"quarter {number}" for number in (1, 2, 3, 4)]
    assert names[0].endswith(f"{heldout.min():g} to {np.quantile(heldout, 0.25, method='lower'):g}")
    assert sizes.sum() == len(heldout) and sizes.min() > len(heldout) / 5


@pytest.mark.process
def test_trees_are_trained_saved_and_judged_like_every_model_and_stand_beside_others(diabetes, tmp_path: Path) -> None:
    """And a step is an iteration, with the loss of all training rows."""
    training = TrainingSpec(
        recipe=RecipeSpec(name="gradient-boosting", model={"iterations": 30, "leaves": 4}),
        checkpoints=CheckpointSpec(every_steps=20),
    )
    num_rows = ShardReader(diabetes.workspace, diabetes.manifest, "train").num_rows
    run, folder = diabetes.publish_run(training.for_rows(num_rows)), tmp_path / "run"
    assert diabetes.train(run, folder, world_size=1) == [0], diabetes.log(folder)
    steps = [event for event in diabetes.events(folder) if event["event"] == "step"]
    assert [step["step"] for step in steps] == list(range(1, 31))
    losses = [step["loss"] for step in steps]
    assert losses == sorted(losses, reverse=True) and {step["tokens"] for step in steps} == {num_rows}
    checkpoint = folder / "checkpoints/step-00000030"
    rank: Any = SimpleNamespace(rank=0, world_size=1, ledger=Ledger(tmp_path / "ledger"))
    proof = prove(rank, diabetes.workspace, checkpoint)
    assert proof["proof_is_exact"] and proof["proof_loss"] == proof["recorded_loss"]
    request = EvaluationRequest(
        checkpoint=str(checkpoint), run=run.sha256, manifest=diabetes.manifest.sha256, boosted_trees=True
    )
    (tmp_path / part_name(0)).write_bytes(canonical_json(evaluate_share(rank, diabetes.workspace, request)))
    scores = merge(tmp_path, 1)
    r2 = metric_set_of(diabetes.manifest.spec["encoder"]).measures[2]
    assert set(scores.baselines) == {"training mean", "linear model", "boosted trees"}
    assert 0.25 < r2.value(scores.baselines["boosted trees"]) < 0.6 and r2.value(scores.sums) > 0.25
