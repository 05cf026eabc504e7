"""Figures are ratios of sums over examples, and the data say which ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.training.evaluation.measures import CLASSES, NUMBERS, TEXT, TOKEN_IDS, metric_set_of


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


def test_ids_of_unknown_tokens_are_judged_by_the_token():
    (bits_per_token,) = TOKEN_IDS.measures
    assert bits_per_token.value({"nats": np.array([math.log(2) * 3]), "targets": np.array([6])}) == 0.5


def test_a_number_is_judged_by_its_squared_error_with_its_root_and_what_it_explains_beside_it():
    sums = {
        "squared_error": np.array([1.0, 3.0]), "targets": np.array([1, 1]), "variation": np.array([8.0, 8.0])
    }  # fmt: skip
    assert NUMBERS.decisive.name == "mean_squared_error"
    assert [each.value(sums) for each in NUMBERS.measures] == [2.0, math.sqrt(2), 0.75]
    assert [each.greater_is_better for each in NUMBERS.measures] == [False, False, True]
    same = sums | {"variation": np.zeros(2)}
    assert [each.is_defined(same) for each in NUMBERS.measures] == [True, True, False]


def test_the_encoder_says_how_models_are_judged():
    assert metric_set_of({"kind": "byte-pair"}) is TEXT
    assert metric_set_of({"kind": "token-ids", "vocab_size": 9}) is TOKEN_IDS
    assert metric_set_of({"kind": "image", "pixels": ["p"], "shape": [8, 8]}) is CLASSES
    assert metric_set_of({"kind": "tabular", "numeric": ["a"], "label": "b"}) is CLASSES
    assert metric_set_of({"kind": "tabular", "numeric": ["a"], "label": "b", "label_kind": "number"}) is NUMBERS
    with pytest.raises(ConfigError, match=r"shards with nothing to predict cannot be evaluated.*label"):
        metric_set_of({"kind": "tabular", "numeric": ["a"]})
