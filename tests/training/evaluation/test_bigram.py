"""The baseline is a proper distribution, fitted on what it is given and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.training.data.encode.packing import PAD_ID
from headway.training.evaluation.baselines import Bigram

VOCAB_SIZE = 12


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    tokens = 2 + generator.zipf(1.6, (40, 17)) % 7
    tokens[::3, 5] = 0
    tokens[-1, 9:] = PAD_ID
    return tokens.astype(np.uint16)


def test_probabilities_after_every_token_sum_to_one_seen_or_not(rows):
    bigram = Bigram(rows, VOCAB_SIZE)
    # Padding as a target would have no loss; its share is what is missing.
    targets = [token for token in range(VOCAB_SIZE) if token != PAD_ID]
    for first in (0, 3, 11):
        pairs = np.array([[first, second] for second in targets], dtype=np.uint16)
        total = float(np.exp(-bigram.nats(pairs)).sum())
        assert 0.9 < total <= 1 + 1e-12
        assert total == pytest.approx(1, abs=0.06)


def test_a_pair_that_always_follows_costs_little_and_an_unseen_one_much():
    rows = np.array([[2, 3, 2, 3, 2, 3, 2, 3, 2, 4]], dtype=np.uint16)
    common, rare = Bigram(rows, VOCAB_SIZE).nats(np.array([[2, 3], [2, 9]], dtype=np.uint16))[:, 0]
    assert common < 0.5 < 2 < rare < 20


def test_padding_costs_nothing_and_is_not_learnt(rows):
    bigram = Bigram(rows, VOCAB_SIZE)
    assert np.all(bigram.nats(rows)[-1, 8:] == 0)
    padded = np.vstack([rows, np.full((5, 17), PAD_ID, dtype=np.uint16)])
    assert np.array_equal(Bigram(padded, VOCAB_SIZE).nats(rows), bigram.nats(rows))


def test_it_beats_counting_single_tokens_on_text_with_structure(rows):
    chain = np.cumsum(np.ones((30, 17), dtype=np.int64), axis=1) % 5 + 2
    mean = Bigram(chain, VOCAB_SIZE).nats(chain).mean()
    assert mean < 0.2 < math.log(5)
