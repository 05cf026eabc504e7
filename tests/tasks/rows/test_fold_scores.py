"""Scores of folds put together are those of one table, and no fold's own mean or quarter shows in them."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.tasks.rows import fold_scores
from headway.tasks.rows.fold_scores import joined_scores, read_scores, score_of
from headway.training.config.fold import Fold
from headway.training.evaluation.measures import NUMBERS
from headway.training.evaluation.outputs import Outputs
from headway.training.programs.evaluation import Details, Scores

LABELS = np.array([1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0])


def fold_of(number: int, labels: np.ndarray, *, error: float = 1.0, importance: int = 2) -> Scores:
    """Off by `error` in each row."""
    rows = np.arange(len(labels))
    outputs = Outputs(label=labels, predicted=labels + error)
    increase = np.full((importance, len(labels)), float(number))
    own = np.square(labels - labels.mean())
    sums = {"squared_error": np.full(len(labels), error**2), "targets": np.ones(len(labels)), "variation": own}
    return Scores(
        examples=tuple(f"row {row:09d}" for row in rows),
        slices=tuple(f"quarter of fold {number}" for _ in rows),
        sums=sums,
        baselines={"training mean": sums} | ({"linear model": sums} if number == 1 else {}),
        details=Details(outputs=outputs, importance=increase, importance_rows=rows),
    )


def parts() -> list[tuple[Fold, Scores, list[float]]]:
    halves = LABELS[:4], LABELS[4:]
    return [(Fold(number=number, of=2), fold_of(number, half), half.tolist()) for number, half in enumerate(halves, 1)]


def test_numbers_are_held_against_the_mean_of_all_rows_and_cut_by_their_quarters() -> None:
    joined = joined_scores(parts())
    assert len(set(joined.examples)) == 8 and joined.examples[4] == "fold 2, row 000000000"
    assert joined.sums["variation"].tolist() == np.square(LABELS - LABELS.mean()).tolist()
    assert joined.baselines["training mean"]["variation"].tolist() == joined.sums["variation"].tolist()
    assert [name.partition(":")[0] for name in joined.slices[:2]] == ["quarter 1", "quarter 1"]
    assert joined.slices[-1].startswith("quarter 4") and len(set(joined.slices)) == 4
    r2 = next(each for each in NUMBERS.measures if each.name == "r2")
    assert r2.value(joined.sums) == pytest.approx(1 - 8 / np.square(LABELS - LABELS.mean()).sum())


def test_a_first_model_has_to_beat_the_best_guess_of_all_rows_and_not_that_of_each_folds_other_rows() -> None:
    """Of keys whose rows are all alike, the other rows of a fold say the opposite of what the fold has."""

    def fold(label: int) -> Scores:
        def sums(share: float) -> dict[str, np.ndarray]:
            return {
                "nats": np.full(4, -np.log(share)),
                "correct": np.full(4, float(share > 0.5)),
                "targets": np.ones(4),
            }

        examples, slices = tuple(map(str, range(4))), ("all",) * 4
        return Scores(
            examples=examples, slices=slices, sums=sums(0.5), baselines={"class prior": sums(0.1)}, details=Details()
        )

    joined = joined_scores(
        [(Fold(number=number, of=2), fold(label), [label] * 4) for number, label in ((1, 0), (2, 1))]
    )
    prior = joined.baselines["class prior"]
    assert prior["nats"].tolist() == pytest.approx([np.log(2)] * 8) and prior["targets"].tolist() == [1.0] * 8
    assert prior["correct"].tolist() == [1.0] * 4 + [0.0] * 4
    numbers = joined_scores(parts()).baselines["training mean"]["squared_error"]
    assert numbers.tolist() == np.square(LABELS - LABELS.mean()).tolist()


def test_what_only_some_folds_could_be_scored_by_is_left_out() -> None:
    assert joined_scores(parts()).baselines.keys() == {"training mean"}


def test_outputs_and_importances_of_all_folds_stand_in_the_order_of_the_rows() -> None:
    joined = joined_scores(parts())
    assert joined.details.outputs is not None and joined.details.importance is not None
    assert joined.details.outputs.label.tolist() == LABELS.tolist()
    assert joined.details.importance_rows.tolist() == list(range(8))
    assert joined.details.importance[0].tolist() == [1.0] * 4 + [2.0] * 4
    without = joined_scores(parts(), has_same_inputs=False).details
    assert without.importance is None and without.outputs is not None


def test_folds_with_other_numbers_of_inputs_show_no_importance() -> None:
    one, two = parts()
    other = (two[0], fold_of(2, LABELS[4:], importance=3), two[2])
    assert joined_scores([one, other]).details.importance is None


def test_what_was_kept_of_a_fold_reads_as_it_was(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_scores, "labels_of", lambda *_: tuple(LABELS[:4]))
    workspace, link = Workspace.create(str(tmp_path)), Link(kind="run", sha256="0" * 64)
    scores = fold_of(1, LABELS[:4])
    kept = read_scores(workspace, score_of(workspace, Fold(number=1, of=2), (link, link), link, scores))
    assert kept.examples == scores.examples and kept.slices == scores.slices
    assert {name: values.tolist() for name, values in kept.sums.items()} == {
        name: values.tolist() for name, values in scores.sums.items()
    }
    assert kept.details.outputs is not None and kept.details.importance is not None
    assert kept.details.outputs.predicted.tolist() == (LABELS[:4] + 1).tolist()


def test_a_fold_whose_model_says_no_finite_number_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_scores, "labels_of", lambda *_: ())
    workspace, link = Workspace.create(str(tmp_path)), Link(kind="run", sha256="0" * 64)
    scores = fold_of(1, LABELS[:4], error=float("inf"))
    with pytest.raises(TrainingFailed, match="the model of fold 1 of 2 has scores that are no finite numbers"):
        score_of(workspace, Fold(number=1, of=2), (link, link), link, scores)
