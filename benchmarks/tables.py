"""Held-out loss of drafted pipelines on tables, over that of scikit-learn's boosted trees and of a linear model.

    python -m benchmarks.tables [--json] [--only NAME ...] [--table FILE COLUMN KIND ...]

Each table is drafted as `headway contract init --label COLUMN` does, and is split, encoded and trained through
Headway's own encoder, shards, sample order and learner, on one rank with one thread. The peers are fitted on the same
encoded training rows and judged on the same held-out ones: histogram gradient boosting with scikit-learn's defaults,
categories marked as such; logistic or ridge regression on standardised numbers and one-hot categories. The loss is log
loss of classes and squared error of numbers.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.figures import Figure, show
from benchmarks.tables_data import MADE, BenchmarkTable, Kind, write_tables

MEAN_TARGET, EACH_TARGET, TRAINING_TARGET_S = "<= 0.95", "<= 1.1", "<= 60"


class Split(NamedTuple):
    """Encoded rows, as shards hold them: columns by name, (rows, ...) each."""

    train: Mapping[str, NDArray[Any]]
    heldout: Mapping[str, NDArray[Any]]


class Trained(NamedTuple):
    loss: float
    training_s: float
    num_steps: int
    num_epochs: float


def drafted_pipeline(table: BenchmarkTable, folder: Path) -> Path:
    """The drafted pipeline file, with the label's kind as a person would set it where the draft guessed another."""
    from headway.flows.act.contract_init import draft
    from headway.flows.act.encoder_draft import recipe_for

    path = draft(str(table.path), out="", name="", base=folder, label=table.label).pipeline
    spec = yaml.safe_load(path.read_text())
    encoder = spec["shards"]["encoder"]
    if encoder["label_kind"] != table.kind:
        encoder["label_kind"] = table.kind
        spec["training"]["recipe"]["name"] = recipe_for(encoder)
        path.write_text(yaml.safe_dump(spec))
    return path


class Prepared(NamedTuple):
    """A table in shards."""

    workspace: Any
    manifest: Any
    fitted: Any
    pipeline: Any


def prepare(table: BenchmarkTable, folder: Path) -> Prepared:
    """Draft, snapshot, fit and write the shards."""
    from headway.data_contracts.sources.reading import read_rows, take_snapshot
    from headway.data_contracts.store.documents import Link
    from headway.data_contracts.store.publication import Workspace
    from headway.data_contracts.tables.digest_cache import DigestCache
    from headway.flows.act.pipeline_draft import MOST_TWENTIETHS
    from headway.flows.config.pipeline_spec import load_pipeline
    from headway.training.data.shards.sharding import fit, write_shards
    from headway.training.data.shards.splits import NO_ROWS, SourceRows

    pipeline = load_pipeline(drafted_pipeline(table, folder))
    if pipeline.evaluation.folds is not None:
        # One training is measured, on as many rows as can be held out: its figure is not of folds.
        shards = pipeline.shards.model_copy(update={"heldout_fraction": MOST_TWENTIETHS / 20})
        pipeline = pipeline.model_copy(update={"shards": shards})
    workspace = Workspace.create(str(folder / "workspace"))
    digests = DigestCache(folder / "digests.json")
    snapshot = take_snapshot(pipeline.source, base=folder, cache=digests)
    columns = dict(snapshot.columns)
    sources = [
        SourceRows(
            *(file.path, file.sha256, file.size_bytes, file.num_rows, NO_ROWS),
            partial(read_rows, pipeline.source, file, base=folder, columns=columns, digests=digests),
        )
        for file in snapshot.files
    ]
    receipt = Link(kind="receipt", sha256="0" * 64)
    fitted = fit(pipeline.shards, sources, workspace, snapshot=snapshot.link, receipt=receipt)
    manifest = write_shards(
        pipeline.shards, fitted, sources, workspace, snapshot=snapshot.link, receipt=receipt, scratch=folder
    )
    return Prepared(workspace, manifest, fitted, pipeline)


def split_of(prepared: Prepared) -> Split:
    from headway.training.data.load.shard_reader import ShardReader

    readers = [ShardReader(prepared.workspace, prepared.manifest, split) for split in ("train", "heldout")]
    return Split(*(reader.gather(np.arange(reader.num_rows)) for reader in readers))


def train(prepared: Prepared, heldout: Mapping[str, NDArray[Any]], training: Any = None) -> Trained:
    """The drafted training on one rank, as a worker does it beside checkpoints, guards and the ledger."""
    import torch

    from headway.training.config.shards import TRAIN
    from headway.training.data.load.shard_reader import ShardReader
    from headway.training.engine.batches import RankBatches
    from headway.training.engine.learner import Learner
    from headway.training.engine.run_documents import data_shape
    from headway.training.programs.evaluation import prediction
    from headway.training.ranks.distributed import ProcessGroup, enable_determinism
    from headway.training.recipes.load import load_recipe

    reader = ShardReader(prepared.workspace, prepared.manifest, TRAIN)
    training = (training or prepared.pipeline.training).for_rows(reader.num_rows)
    enable_determinism(training.num_threads)
    group = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    recipe = load_recipe(training.recipe.name, training.recipe.model, data_shape(prepared.manifest, prepared.fitted))
    torch.manual_seed(training.seed)
    learner = Learner(recipe, training, group)
    batches = RankBatches(reader, training, share=learner.share, device=group.device)
    started_s = time.perf_counter()
    for number in range(-(-training.max_steps // batches.steps_per_block)):
        first = number * batches.steps_per_block
        for step, made in enumerate(batches.steps(batches.block(number), batches.steps_per_block), first):
            if step == training.max_steps:
                break
            sums = learner.exchange(learner.backward(step, made), stop=False)
            learner.update(step, sums, learner.gradient_norm(sums))
    training_s = time.perf_counter() - started_s
    measured = prediction(recipe, learner.model.eval())(heldout)
    loss = float(measured["nats" if "nats" in measured else "squared_error"].mean())
    num_epochs = training.max_steps * training.global_batch_sequences / reader.num_rows
    return Trained(loss, training_s, training.max_steps, num_epochs)


def grown_loss(prepared: Prepared, heldout: Mapping[str, NDArray[Any]]) -> float:
    """Of the recipe `gradient-boosting` with its defaults, on the same rows."""
    import torch

    from headway.training.config.shards import TRAIN
    from headway.training.config.training_spec import TrainingSpec
    from headway.training.data.load.shard_reader import ShardReader
    from headway.training.engine.boosted_learner import BoostedLearner
    from headway.training.engine.run_documents import data_shape
    from headway.training.programs.evaluation import prediction
    from headway.training.ranks.distributed import ProcessGroup
    from headway.training.recipes.load import load_recipe

    reader = ShardReader(prepared.workspace, prepared.manifest, TRAIN)
    training = TrainingSpec.model_validate({"recipe": {"name": "gradient-boosting"}}).for_rows(reader.num_rows)
    recipe: Any = load_recipe(training.recipe.name, {}, data_shape(prepared.manifest, prepared.fitted))
    learner = BoostedLearner(recipe, training, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")), reader)
    for step in range(training.max_steps):
        if learner.has_converged:
            break
        learner.update(step, learner.exchange(learner.backward(step, ()), stop=False), 0.0)
    measured = prediction(recipe, learner.model.eval())(heldout)
    return float(measured["nats" if "nats" in measured else "squared_error"].mean())


def _features(split: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], list[bool]]:
    """Numbers and category ids side by side, and which are ids."""
    blocks = [split[name] for name in ("numeric", "categorical") if name in split]
    is_category = [name == "categorical" for name in ("numeric", "categorical") if name in split]
    marks = [mark for block, mark in zip(blocks, is_category, strict=True) for _ in range(block.shape[1])]
    return np.concatenate([block.astype(np.float64) for block in blocks], axis=1), marks


def trees_loss(split: Split, kind: Kind) -> float:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    train_rows, marks = _features(split.train)
    heldout_rows, _ = _features(split.heldout)
    # Ids beyond 255 cannot be categories of scikit-learn's; they stay numbers.
    marks = [mark and train_rows[:, place].max() < 255 for place, mark in enumerate(marks)]
    model = (HistGradientBoostingClassifier if kind == "class" else HistGradientBoostingRegressor)(
        categorical_features=marks, random_state=0
    )
    model.fit(train_rows, split.train["label"].reshape(-1))
    return _loss(model, heldout_rows, split, kind)


def linear_loss(split: Split, kind: Kind) -> float:
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    train_rows, marks = _features(split.train)
    heldout_rows, _ = _features(split.heldout)
    one_hot = ColumnTransformer(
        [("ids", OneHotEncoder(handle_unknown="ignore"), [place for place, mark in enumerate(marks) if mark])],
        remainder="passthrough",
    )
    model = make_pipeline(one_hot, LogisticRegression(max_iter=2000) if kind == "class" else Ridge())
    model.fit(train_rows, split.train["label"].reshape(-1))
    return _loss(model, heldout_rows, split, kind)


def _loss(model: Any, rows: NDArray[Any], split: Split, kind: Kind) -> float:
    label = split.heldout["label"].reshape(-1)
    if kind == "number":
        return float(np.square(model.predict(rows) - label).mean())
    chances = model.predict_proba(rows)[np.arange(len(label)), np.searchsorted(model.classes_, label)]
    return float(-np.log(np.maximum(chances, 1e-15)).mean())


def figures_of(name: str, table: BenchmarkTable, folder: Path) -> tuple[list[Figure], float]:
    """What is said of one table, and its loss over the trees'."""
    prepared = prepare(table, folder)
    split = split_of(prepared)
    ours = train(prepared, split.heldout)
    trees, linear = trees_loss(split, table.kind), linear_loss(split, table.kind)
    grown = grown_loss(prepared, split.heldout)
    num_rows = len(split.train["label"])
    rows = f"{num_rows:,} + {len(split.heldout['label']):,} rows"
    epochs = f"{ours.num_steps:,} steps, {ours.num_epochs:.3g} epochs"
    return [
        Figure(name=f"{name} ({table.kind}, {rows})", value=ours.loss / trees, ratio_to="trees", target=EACH_TARGET),
        Figure(name=f"{name}: a linear model", value=linear / trees, ratio_to="trees"),
        Figure(name=f"{name}: recipe gradient-boosting", value=grown / trees, ratio_to="trees"),
        Figure(name=f"{name}: {epochs}", value=ours.training_s, unit="s", target=TRAINING_TARGET_S),
    ], ours.loss / trees


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(MADE), help="some of the tables")
    parser.add_argument(
        "--table", nargs=3, action="append", default=[], metavar=("FILE", "COLUMN", "KIND"), help="one of your own"
    )
    arguments = parser.parse_args()
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    figures, ratios = [], []
    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as name:
        tables = write_tables(Path(name) / "tables")
        own = {
            Path(file).stem: BenchmarkTable(Path(file).resolve(), label, kind) for file, label, kind in arguments.table
        }
        chosen = own or {each: tables[each] for each in arguments.only or tables}
        for each, table in chosen.items():
            folder = Path(name) / "work" / each
            folder.mkdir(parents=True)
            of_table, ratio = figures_of(each, table, folder)
            figures += of_table
            ratios.append(ratio)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    figures.append(Figure(name="geometric mean", value=mean, ratio_to="trees", target=MEAN_TARGET))
    show(figures, title="Drafts on tables", as_json=arguments.json, libraries=("scikit-learn", "torch"))


if __name__ == "__main__":
    main()
