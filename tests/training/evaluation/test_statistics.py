"""Intervals over documents."""

from __future__ import annotations

import numpy as np
import pytest

from headway.training.evaluation import statistics
from headway.training.evaluation.statistics import paired_difference, paired_difference_over_seeds, ratio_interval

CHOICE = {"resamples": 2000, "confidence": 0.95, "seed": 1}


def scores(num_documents: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    size_bytes = generator.integers(100, 50_000, num_documents)
    return size_bytes * (1.8 + 0.3 * generator.standard_normal(num_documents)), size_bytes


def test_the_value_is_the_ratio_of_sums_and_lies_in_its_interval():
    bits, size_bytes = scores(90)
    interval = ratio_interval(bits, size_bytes, **CHOICE)
    assert interval.value == pytest.approx(bits.sum() / size_bytes.sum())
    assert interval.low < interval.value < interval.high


def test_the_same_seed_gives_the_same_interval_and_another_a_slightly_different_one():
    bits, size_bytes = scores(90)
    first = ratio_interval(bits, size_bytes, **CHOICE)
    assert ratio_interval(bits, size_bytes, **CHOICE) == first
    other = ratio_interval(bits, size_bytes, **{**CHOICE, "seed": 2})
    assert other != first
    assert other.low == pytest.approx(first.low, rel=0.02)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(200):
        bits, size_bytes = scores(60, seed)
        interval = ratio_interval(bits, size_bytes, resamples=300, confidence=0.9, seed=seed)
        covered += interval.low <= 1.8 <= interval.high
    assert 160 <= covered <= 196


def test_pairing_sees_a_small_difference_that_every_document_shares():
    bits, size_bytes = scores(90)
    better = bits - 0.01 * size_bytes
    difference = paired_difference(better, bits, size_bytes, **CHOICE)
    assert difference.value == pytest.approx(-0.01)
    assert difference.high < 0
    alone = ratio_interval(bits, size_bytes, **CHOICE)
    assert alone.high - alone.low > 0.02, "unpaired, the documents' own spread would hide it"


def test_over_seeds_one_alone_says_what_a_pair_does_and_two_that_disagree_leave_0_inside():
    bits, size_bytes = scores(90)
    better, worse = bits - 0.01 * size_bytes, bits + 0.03 * size_bytes
    pair = paired_difference(better, bits, size_bytes, **CHOICE)
    assert paired_difference_over_seeds([better], [bits], size_bytes, **CHOICE) == pair

    agreeing = paired_difference_over_seeds([better, 2 * better - bits], [bits, bits], size_bytes, **CHOICE)
    assert agreeing.value == pytest.approx(-0.015) and agreeing.low < -0.019 and -0.011 < agreeing.high < 0
    # By the examples alone their mean is clear; a third seed may say anything.
    mixed = paired_difference_over_seeds([better, worse], [bits, bits], size_bytes, **CHOICE)
    assert mixed.value == pytest.approx(0.01) and mixed.low < 0 < mixed.high


def test_a_model_against_itself_differs_by_nothing():
    bits, size_bytes = scores(30)
    difference = paired_difference(bits, bits, size_bytes, **CHOICE)
    assert (difference.low, difference.value, difference.high) == (0, 0, 0)


def test_more_documents_than_fit_a_block_are_drawn_in_pieces(monkeypatch):
    bits, size_bytes = scores(90)
    whole = ratio_interval(bits, size_bytes, **CHOICE)
    monkeypatch.setattr(statistics, "BLOCK_DRAWS", 1000)
    statistics._kept_draws.cache_clear()
    assert ratio_interval(bits, size_bytes, **CHOICE) == whole


@pytest.mark.parametrize("kept_draws", [0, statistics.KEPT_DRAWS])
def test_sums_are_those_of_documents_drawn_by_hand_whether_draws_are_kept_or_not(monkeypatch, kept_draws: int):
    monkeypatch.setattr(statistics, "KEPT_DRAWS", kept_draws)
    monkeypatch.setattr(statistics, "BLOCK_DRAWS", 1000)
    for num_documents, seed in ((90, 1), (7, 1), (90, 2), (90, 1)):
        columns = np.stack([*scores(num_documents)], axis=1).astype(np.float64)
        chosen = np.random.default_rng(seed).integers(num_documents, size=(50, num_documents))
        by_hand = np.stack([np.ascontiguousarray(column)[chosen].sum(axis=1) for column in columns.T], axis=1)
        assert (statistics._resampled_sums(columns, 50, seed) == by_hand).all()


def test_figures_of_one_evaluation_draw_once(monkeypatch):
    drawn, new = [], statistics._new_draws
    monkeypatch.setattr(statistics, "_new_draws", lambda *which: drawn.append(which) or new(*which))
    statistics._kept_draws.cache_clear()
    bits, size_bytes = scores(90)
    for factor in (1.0, 2.0, 3.0):
        ratio_interval(factor * bits, size_bytes, **CHOICE)
    assert len(drawn) == 1


@pytest.mark.parametrize(("numerators", "denominators"), [([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0])])
def test_scores_that_give_no_ratio_are_refused(numerators, denominators):
    with pytest.raises(ValueError, match=r"document|positive"):
        ratio_interval(numerators, denominators, **CHOICE)


def test_documents_that_depend_on_each_other_are_drawn_together():
    """Twenty documents of one key say as much as one of them."""
    generator = np.random.default_rng(0)
    of_key = 1.8 + 0.3 * generator.standard_normal(30)
    bits, ones, keys = np.repeat(of_key, 20), np.ones(600), np.repeat(np.arange(30), 20)
    together = ratio_interval(bits, ones, **CHOICE, groups=keys)
    alone, apart = ratio_interval(of_key, np.ones(30), **CHOICE), ratio_interval(bits, ones, **CHOICE)
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high), abs=1e-9)
    assert apart.high - apart.low < (together.high - together.low) / 3
    assert together.value == apart.value, "groups move no figure"
    shuffled = generator.permutation(600)
    other = ratio_interval(bits[shuffled], ones, **CHOICE, groups=7 - keys[shuffled])
    assert other.high - other.low == pytest.approx(together.high - together.low, rel=0.1)
    pair = paired_difference(bits - 0.01, bits, ones, **CHOICE, groups=keys)
    assert (pair.low, pair.high) == pytest.approx((-0.01, -0.01))
