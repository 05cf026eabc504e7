"""Figures are ratios of sums over examples, and the data say which ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data_contracts.errors import ConfigError
from training.measures import CLASSES, TEXT, yardstick_of


def test_bits_per_byte_is_nats_over_log_2_over_bytes():
    sums = {"nats": np.array([math.log(2) * 3, math.log(2)]), "targets": np.array([9, 9]), "bytes": np.array([1, 3])}
    (bits_per_byte,) = TEXT.measures
    assert bits_per_byte.value(sums) == 1.0
    assert bits_per_byte.numerators(sums).tolist() == [3.0, 1.0]
    assert not bits_per_byte.greater_is_better


def test_a_classifier_is_judged_by_its_loss_and_its_accuracy_is_beside_it():
    sums = {"nats": np.array([0.5, 1.5, 1.0]), "correct": np.array([1, 0, 1]), "targets": np.array([1, 1, 1])}
    log_loss, accuracy = CLASSES.measures
    assert CLASSES.decisive is log_loss
    assert (log_loss.value(sums), accuracy.value(sums)) == (1.0, pytest.approx(2 / 3))
    assert (log_loss.greater_is_better, accuracy.greater_is_better) == (False, True)


def test_the_columns_say_how_models_are_judged():
    assert yardstick_of({"tokens", "document"}) is TEXT
    assert yardstick_of({"pixels", "label"}) is CLASSES
    with pytest.raises(ConfigError, match="shards with columns pixels cannot be evaluated"):
        yardstick_of({"pixels"})
