"""Trees are scikit-learn's, as plain tensors; a run of them that is continued has the bits of one that was not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.config.encoder_specs import TabularEncoderSpec, TokenIdsSpec
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.shapes import TabularNumberShape, TabularShape
from headway.training.config.training_spec import TrainingSpec, length_line, replicas_per_rank
from headway.training.engine import boosted_learner
from headway.training.engine.boosted_learner import BoostedLearner
from headway.training.engine.learner import load_model_tensors
from headway.training.frozen.mesh_check import require_trainable
from headway.training.graph_check.safe_graph import load_graph
from headway.training.programs.export import GRAPH, write_graph
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.load import load_recipe

NUM_ROWS = 600
CARDINALITIES = (8, 41, 300)
"""The last has more ids than bins, and is read as numbers."""
FIELDS = {"iterations": 12, "leaves": 12, "early_stopping": False}
ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))


class Reader:
    """Rows with gaps, ids of which some never occur, and a label of so many classes; 0: a number."""

    def __init__(self, num_classes: int, num_rows: int = NUM_ROWS, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        numeric = random.normal(size=(num_rows, 3)).astype(np.float32)
        numeric[random.random(numeric.shape) < 0.05] = np.nan
        few, many = random.choice([1, 2, 3, 5], num_rows), random.integers(1, 41, num_rows)
        ids = np.stack([few, many, random.integers(0, 300, num_rows)], axis=1).astype(np.int32)
        known = np.nan_to_num(numeric)
        signal = 2 * known[:, 0] + np.sin(3 * known[:, 1]) + few % 3 + np.cos(7 * many) + np.isnan(numeric[:, 2])
        signal += random.normal(scale=0.3, size=num_rows)
        cuts = np.linspace(-2, 4, num_classes + 1)[1:-1] if num_classes else ()
        label = np.digitize(signal, cuts).astype(np.int32) if num_classes else (100 + 20 * signal).astype(np.float32)
        self.columns = {"numeric": numeric, "categorical": ids, "label": label[:, None]}
        self.num_rows = num_rows
        sizes: dict[str, Any] = {"num_numeric": 3, "cardinalities": CARDINALITIES}
        mean_and_deviation = {"mean": float(label.mean()), "deviation": float(label.std())}
        self.shape: TabularShape | TabularNumberShape = (
            TabularShape(**sizes, num_classes=num_classes)
            if num_classes
            else TabularNumberShape(**sizes, **mean_and_deviation)
        )

    def gather(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return {name: values[rows] for name, values in self.columns.items()}

    @property
    def features(self) -> NDArray[np.float64]:
        return np.concatenate([self.columns[name].astype(np.float64) for name in ("numeric", "categorical")], axis=1)


def new_learner(reader: Reader, num_threads: int = 1, **fields: Any) -> BoostedLearner:
    training = TrainingSpec.model_validate(
        {"recipe": {"name": "gradient-boosting", "model": FIELDS | fields}, "num_threads": num_threads}
    ).for_rows(reader.num_rows)
    recipe: Any = load_recipe("gradient-boosting", training.recipe.model, reader.shape)
    return BoostedLearner(recipe, training, ALONE, reader)  # type: ignore[arg-type]


def grow(learner: BoostedLearner, steps: range) -> list[float]:
    losses = []
    for step in steps:
        if learner.has_converged:
            break
        sums = learner.exchange(learner.backward(step, ()), stop=False)
        learner.update(step, sums, learner.gradient_norm(sums))
        losses.append(sums.loss)
    return losses


def said(learner: BoostedLearner, features: NDArray[np.float64]) -> NDArray[np.float64]:
    with torch.inference_mode():
        made: NDArray[np.float64] = learner.model.eval().raw(torch.from_numpy(features.astype(np.float32))).numpy()
    return made


@pytest.mark.parametrize("num_classes", [0, 2, 4])
def test_what_they_say_is_what_scikit_learn_says_also_of_gaps_unseen_ids_and_numbers_out_of_range(num_classes) -> None:
    reader, others = Reader(num_classes), Reader(num_classes, seed=1)
    learner = new_learner(reader)
    losses = grow(learner, range(12))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    peer = (HistGradientBoostingClassifier if num_classes else HistGradientBoostingRegressor)(
        **{"max_iter": 12, "max_leaf_nodes": 12, "max_depth": 16, "early_stopping": False},
        categorical_features=[3, 4],
    ).fit(reader.features, reader.columns["label"][:, 0])
    asked = others.features
    asked[:10, :3], asked[10:20, :3], asked[20:30, :3] = np.nan, 3e38, -3e38
    asked[30:40, 3], asked[40:50, 4] = 0, 0  # which stand for values that training never saw
    asked[50:60, 3] = 4
    expected = peer.decision_function(asked) if num_classes else peer.predict(asked)
    made = said(learner, asked)
    np.testing.assert_allclose(made.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


def test_continued_on_other_threads_they_are_the_same_to_the_bit() -> None:
    reader = Reader(4)
    whole, first, second = new_learner(reader), new_learner(reader), new_learner(reader, num_threads=3)
    grow(whole, range(12))
    grow(first, range(5))
    second.load({name: value.clone() for name, value in first.tensors().items()}, first.scalars())  # type: ignore[union-attr]
    grow(second, range(5, 12))
    assert second.tensors().keys() == whole.tensors().keys()
    for name, value in whole.tensors().items():
        assert torch.equal(second.tensors()[name], value), name  # type: ignore[arg-type]


def test_trees_of_another_form_are_not_taken_over() -> None:
    reader = Reader(2)
    state = dict(new_learner(reader, iterations=11).tensors())
    with pytest.raises(IntegrityError, match=r"model\.child does not fit"):
        new_learner(reader).load(state, {"converged": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["num_iterations", "num_levels"])
@pytest.mark.parametrize("number", [-1, 1 << 10, 1 << 62])
def test_a_checkpoint_that_says_more_trees_than_there_can_be_is_refused_instead_of_led_through_for_ever(
    name: str, number: int
) -> None:
    reader = Reader(2)
    learner = new_learner(reader)
    state = {each: torch.as_tensor(value).clone() for each, value in learner.tensors().items()}
    state[f"model.{name}"].fill_(number)
    with pytest.raises(IntegrityError, match="fit no configuration"):
        learner.load(state, {"converged": 0})
    model = new_learner(reader).model
    load_model_tensors(model, state)
    with pytest.raises(IntegrityError, match="fit no configuration"):
        model.eval()


def test_it_ends_where_rows_that_no_tree_saw_lose_no_more_and_keeps_the_best() -> None:
    reader = Reader(2, num_rows=1500)
    early = {"iterations": 200, "early_stopping": True, "min_validation_rows": 50, "patience": 5, "learning_rate": 0.5}
    learner = new_learner(reader, **early)
    num_steps = len(grow(learner, range(200)))
    kept = int(learner.model.num_iterations)
    assert learner.has_converged and kept == num_steps - 5 < 100
    assert not learner.model.value[kept:].any(), "of trees that came later something is left"
    other = new_learner(reader, **early)
    other.load({name: value.clone() for name, value in learner.tensors().items()}, learner.scalars())  # type: ignore[union-attr]
    assert other.has_converged
    # Held out by their inputs: a row that comes twice is on one side, and more rows move none.
    longer = Reader(2, num_rows=1500)
    longer.columns = {name: np.concatenate([values, values]) for name, values in longer.columns.items()}
    longer.num_rows *= 2
    before, after = learner._is_validation, new_learner(longer, **early)._is_validation
    assert (after == np.tile(before, 2)).all() and 0.05 < before.mean() < 0.15


def test_with_few_rows_all_of_them_are_learnt_from() -> None:
    learner = new_learner(Reader(2), early_stopping=True)
    assert not learner._is_validation.any() and len(grow(learner, range(12))) == 12


def test_the_exported_graph_passes_and_says_the_same(tmp_path) -> None:
    reader = Reader(2)
    learner = new_learner(reader, leaves=4, depth=3)
    grow(learner, range(3))
    model = learner.model.eval()
    write_graph(model, torch.zeros((2, 6)), tmp_path)
    graph = load_graph((tmp_path / GRAPH).read_bytes(), GRAPH)
    records = torch.from_numpy(reader.features.astype(np.float32))
    assert torch.equal(graph(records), model(records)) and model(records).std() > 0


def test_more_values_than_are_held_in_memory_are_refused_before_they_are_read(monkeypatch) -> None:
    monkeypatch.setattr(boosted_learner, "MAX_CELLS", 6 * NUM_ROWS - 1)
    reader = Reader(2)
    reader.gather = None  # type: ignore[method-assign,assignment]
    with pytest.raises(ConfigError, match="600 training rows of 6 columns are 3,600 values") as refused:
        new_learner(reader)
    assert "tabular-classifier" in refused.value.advice


TABLE = TabularEncoderSpec(numeric=("a",), label="b")


@pytest.mark.parametrize(
    ("changes", "encoder", "world_size", "problem"),
    [
        ({}, TABLE, 2, "grown by one rank.*there are 2 ranks.*nodes: 1"),
        ({"optimizer": OptimizerSpec(kind="sgd")}, TABLE, 1, "no use for optimizer"),
        ({"max_epochs": 3, "precision": "bf16"}, TABLE, 1, "no use for precision, max_epochs"),
        ({"recipe": {"name": "gradient-boosting", "model": {"members": 4}}}, TABLE, 1, "members: no such field"),
        ({}, TokenIdsSpec(vocab_size=9), 1, "does not read what the encoder token-ids makes"),
        ({}, TabularEncoderSpec(numeric=("a",)), 1, "does not read what the encoder tabular makes"),
    ],
)
def test_what_only_networks_do_is_refused_by_name(changes, encoder, world_size, problem) -> None:
    training = TrainingSpec.model_validate({"recipe": {"name": "gradient-boosting"}} | changes)
    with pytest.raises(ConfigError, match=problem):
        require_trainable(training, encoder, world_size, None)


def test_a_step_is_an_iteration_and_max_steps_may_end_it_sooner() -> None:
    training = TrainingSpec.model_validate({"recipe": {"name": "gradient-boosting", "model": {"iterations": 300}}})
    require_trainable(training, TABLE, 1, None)
    assert replicas_per_rank(training, 1) == 1
    assert training.for_rows(7).max_steps == 300
    assert training.model_copy(update={"max_steps": 20}).for_rows(7).max_steps == 20
    assert length_line(training, context_tokens=1, num_rows=700) == "at most 300 iterations, each on 700 rows"
