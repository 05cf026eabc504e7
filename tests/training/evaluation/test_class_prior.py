"""The baseline of a classifier: shares of the classes, none of them impossible."""

from __future__ import annotations

import numpy as np
import pytest

from headway.training.evaluation.baselines import ClassPrior


def test_a_class_costs_the_more_the_rarer_it_is_and_all_shares_sum_to_one():
    prior = ClassPrior(np.array([0, 0, 0, 1]), num_classes=3)
    nats = prior.nats(np.array([0, 1, 2]))
    assert np.exp(-nats) == pytest.approx([4 / 7, 2 / 7, 1 / 7], rel=1e-12)


def test_its_guess_is_always_the_commonest_class():
    prior = ClassPrior(np.array([2, 2, 1]), num_classes=3)
    assert prior.correct(np.array([[0], [1], [2], [2]])).tolist() == [[0], [0], [1], [1]]
