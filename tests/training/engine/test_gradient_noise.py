"""The gradient noise scale: an estimate from two norms a step that comes out where it has to."""

from __future__ import annotations

import numpy as np
import pytest

from headway.training.engine.gradient_noise import GradientNoise

SMALL, LARGE = 4, 32


def taken(mean: np.ndarray, deviation: float, steps: int) -> GradientNoise:
    """Of rows whose gradients are drawn around a mean: sums over the first few, and over all."""
    draw, noise = np.random.default_rng(5), GradientNoise(SMALL)
    for _ in range(steps):
        rows = draw.normal(mean, deviation, (LARGE, len(mean)))
        noise.take(*(float(np.square(rows[:count].sum(axis=0)).sum()) for count in (SMALL, LARGE)), LARGE)
    return noise


@pytest.mark.parametrize("deviation", [0.3, 1.0, 4.0])
def test_it_is_the_noise_of_a_row_over_the_gradient(deviation):
    mean = np.linspace(-1, 1, 500)
    expected = 500 * deviation**2 / np.square(mean).sum()
    assert taken(mean, deviation, 300).scale == pytest.approx(expected, rel=0.2)


def test_it_is_the_same_of_a_batch_that_grows():
    mean, draw, noise = np.linspace(-1, 1, 500), np.random.default_rng(5), GradientNoise(SMALL)
    for step in range(300):
        rows = draw.normal(mean, 1.0, (LARGE if step < 290 else 2 * LARGE, len(mean)))
        noise.take(*(float(np.square(rows[:count].sum(axis=0)).sum()) for count in (SMALL, len(rows))), len(rows))
    assert noise.scale == pytest.approx(500 / np.square(mean).sum(), rel=0.2)


def test_it_is_unknown_before_the_first_step_and_where_replica_and_batch_are_the_same():
    assert GradientNoise(SMALL).scale is None
    alone = GradientNoise(LARGE)
    alone.take(3.0, 3.0, LARGE)
    assert alone.scale is None and alone.scalars() == {}


def test_where_noise_hides_the_gradient_there_is_no_number():
    noise = GradientNoise(1)
    noise.take(4.0, 1.0, 2)  # two gradients that all but cancel
    assert noise.scale is None and noise.scalars()["gradient_noise_signal"] < 0


def test_it_looks_back_over_its_last_steps_and_goes_on_alike_from_a_checkpoint():
    whole = taken(np.ones(50), 1.0, 300)
    early = GradientNoise(SMALL)
    early.load(taken(np.ones(50), 1.0, 100).scalars())
    draw = np.random.default_rng(5)
    for step in range(300):
        rows = draw.normal(np.ones(50), 1.0, (LARGE, 50))
        if step >= 100:
            early.take(*(float(np.square(rows[:count].sum(axis=0)).sum()) for count in (SMALL, LARGE)), LARGE)
    assert early.scalars() == whole.scalars() and early.scale == whole.scale
    for _ in range(1000):
        early.take(SMALL**2 * 2.0, LARGE**2 * 1.0, LARGE)
    signal, noise = (LARGE - 2 * SMALL) / (LARGE - SMALL), 1 / (1 / SMALL - 1 / LARGE)
    assert early.scale == pytest.approx(noise / signal, rel=1e-3)
