"""What each trial would come to at its end, by what all trials have come to so far. Pure.

Early figures mislead: where a large rate leads at the first rung, a small one may at the end. A Gaussian process over
settings and steps learns by how much, and where in the space, from those that came further (Swersky, Snoek and Adams,
"Freeze-thaw Bayesian optimization", 2014). Which trials came further was decided by what is among its data, so that
their being the better ones misleads it in nothing.

Its hyperparameters are averaged over draws from a prior, weighted by their likelihood (as proposed by Osborne et al.,
2012): there is no optimizer, which would stop elsewhere on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.tasks.search.earlier_trials import Outcome
from headway.tasks.search.space import Space, Varied
from headway.tasks.search.values import written

Floats = NDArray[np.float64]

NUM_DRAWS = 32
"""Of hyperparameters. A single one may suit the curves at hand badly; more change little."""
NEGLIGIBLE = 1e-6
"""Weight of a draw that the others leave nothing to say: of many trials one or two draws are likely, and each costs."""
BLOCK = 64
"""Rows."""
OTHER_CHOICE = 0.35
"""How far one choice of a list lies from another, where the ends of a range lie 1 apart."""
WORST = 2.0
"""Distances of the best figure from the median, by which one may lie on its other side: how bad is then of no matter,
and one that diverged would be all that the process explains."""
FEW = 3
"""Figures of a step tell by themselves which of them is bad; of fewer, all steps' do."""
OF_ANY_SIZE = 100.0
"""Variance of what is not known beforehand: how far the figures of a step lie from those of another in all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedEnd:
    """What a trial would come to; lower is better. The unit is no metric's: it serves to compare."""

    mean: float
    deviation: float


def expected_ends(space: Space, outcomes: Sequence[Outcome], end_step: int) -> list[ExpectedEnd | None]:
    """By trial. None: it failed, or came to what is no number.

    Args:
        outcomes: their values by step; steps beyond the end count as the end.
        end_step: of a whole run.
    """
    known = [place for place, each in enumerate(outcomes) if _is_known(each)]
    expected: list[ExpectedEnd | None] = [None] * len(outcomes)
    if known:
        curves = _Curves.of([outcomes[place] for place in known], end_step)
        ends = _averaged(_distances(space, [outcomes[place] for place in known]), curves)
        for place, mean, deviation in zip(known, *ends, strict=True):
            expected[place] = ExpectedEnd(mean=float(mean), deviation=float(deviation))
    return expected


def _is_known(outcome: Outcome) -> bool:
    return bool(outcome.values) and not outcome.has_failed and all(map(math.isfinite, outcome.values.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Curves:
    """All figures of all trials, each of shape (figures,)."""

    trials: NDArray[np.intp]
    """Whose."""
    times: Floats
    """Logarithms of the steps to the base of 3, from the first rung on."""
    end_time: float
    figures: Floats

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], end_step: int) -> _Curves:
        seen = [
            # Before the first step, as studies of Optuna's may have it, is as good as after it.
            (place, math.log(max(min(step, end_step), 1), 3), value)
            for place, each in enumerate(outcomes)
            for step, value in each.values.items()
        ]
        trials, times, values = (np.array(column) for column in zip(*seen, strict=True))
        figures = values / (np.abs(values).max() or 1.0)  # whose squares are numbers
        if (figures >= 0).all():
            # Losses fall by shares: 0.07 beside 0.18 says as much late as 0.7 beside 1.1 did early. Logarithms would
            # make most of what lies next to 0.
            figures = np.sqrt(figures)
        for time in np.unique(times):
            at = times == time
            told = figures[at] if at.sum() >= FEW else figures
            median, best = np.median(told), told.min()
            figures[at] = np.minimum(figures[at], median + WORST * (median - best))
        figures /= np.abs(figures).max() or 1.0  # the largest may have been one that diverged
        first_time = times.min()
        first = figures[times == first_time]
        return cls(
            trials=trials,
            times=times - first_time,
            end_time=math.log(end_step, 3) - first_time,
            # One figure alone, or equal ones, tell no spread.
            figures=(figures - first.mean()) / (first.std() or figures.std() or 1.0),
        )


def _distances(space: Space, outcomes: Sequence[Outcome]) -> Floats:
    """Of each trial from each other, by setting: shape (settings, trials, trials)."""
    distances = np.empty((len(space.varied), len(outcomes), len(outcomes)))
    for its, (name, varied) in zip(distances, space.varied.items(), strict=True):
        its[:] = _distances_of(name, varied, outcomes)  # of a hundred settings a second copy would be the most memory
    return distances


def _distances_of(name: str, varied: Varied, outcomes: Sequence[Outcome]) -> Floats:
    values = [each.settings.get(name) for each in outcomes]
    if varied.values is not None:
        choices: dict[str, int] = {}  # as a file has them: 1 is neither 1.0 nor true
        codes = np.array([choices.setdefault(written(value), len(choices)) for value in values])
        return np.where(codes[:, None] == codes, 0.0, OTHER_CHOICE).astype(np.float64)
    # A range holds numbers alone.
    shares = np.array([_share(varied, value) if isinstance(value, int | float) else np.nan for value in values])
    apart = np.abs(shares[:, None] - shares)
    # Where it does not vary for both they are as near as can be, and where it does for one alone as another choice.
    varies_not = np.isnan(shares)
    apart[np.isnan(apart)] = OTHER_CHOICE
    apart[varies_not[:, None] & varies_not] = 0.0
    return np.asarray(apart)


def _share(varied: Varied, value: float) -> float:
    """Where it lies on the way from one end of its range to the other."""
    low, high = varied.uniform or varied.integer or (0.0, 1.0)
    if varied.log_uniform is not None:
        low, high, value = *map(math.log, varied.log_uniform), math.log(value)
    return (value - low) / (high - low)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prior:
    """A draw of hyperparameters: how curves of trials resemble each other."""

    lengths: Floats
    """How far a setting moves until what it comes to is another; by setting."""
    memory: float
    """How many rungs further a figure still says where a curve goes."""
    drift: float
    """How much of what settings do they do at some steps and not at others, beside what they do at all."""
    own: float
    """How much of a curve its settings say nothing of."""
    noise: float
    narrowing: float
    """How the spread between trials shrinks from a rung to the next."""

    @classmethod
    def draw(cls, draw: np.random.Generator, num_settings: int) -> _Prior:
        def around(median: float, spread: float, size: int | None = None) -> float | Floats:
            return np.exp(draw.normal(math.log(median), spread, size))

        # Distances add up over settings, and few of many matter.
        usual = 0.4 * max(1.0, math.sqrt(num_settings / 3))
        return cls(
            lengths=np.asarray(around(usual, 0.5, num_settings)),
            memory=float(around(2.0, 0.6)),
            drift=float(around(0.6, 0.7)),
            own=float(around(0.2, 0.8)),
            noise=float(around(0.05, 0.7)),
            narrowing=float(around(0.6, 0.4)),
        )


def _averaged(distances: Floats, curves: _Curves) -> tuple[Floats, Floats]:
    """The ends of all trials and their deviations, over draws of the prior by how likely they make what was seen."""
    from threadpoolctl import threadpool_limits

    squares, draw = np.square(distances, out=distances), np.random.default_rng(0)
    priors = [_Prior.draw(draw, len(squares)) for _ in range(NUM_DRAWS)]
    # Threads of a library for matrices of this size cost more than they bring, and sum in another order.
    with threadpool_limits(1, user_api="blas"):
        likelihoods = np.array([_likelihood(squares, curves, prior) for prior in priors])
        weights = np.exp(likelihoods - likelihoods.max())
        weights /= weights.sum()
        likely = np.flatnonzero(weights > NEGLIGIBLE)
        fits = [_Fit.of(squares, curves, priors[place]).ends() for place in likely]
    ends, variances = (np.array(column) for column in zip(*fits, strict=True))
    weights = weights[likely] / weights[likely].sum()
    mean = weights @ ends
    return mean, np.sqrt(np.maximum(weights @ (variances + (ends - mean) ** 2), 0.0))


def _likelihood(squares: Floats, curves: _Curves, prior: _Prior) -> float:
    try:
        return _Fit.of(squares, curves, prior).likelihood
    except np.linalg.LinAlgError:  # what was seen is as good as equal to it
        return -math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """What a draw of hyperparameters makes of all that was seen."""

    curves: _Curves
    prior: _Prior
    alike: Floats
    """How much trials resemble each other by their settings; (trials, trials)."""
    root: Floats
    """Of the covariance of what was seen; (figures, figures)."""
    explained: Floats
    likelihood: float
    """Its logarithm, but for a constant."""

    @classmethod
    def of(cls, squares: Floats, curves: _Curves, prior: _Prior) -> _Fit:
        apart = np.sqrt(np.tensordot(5 / prior.lengths**2, squares, 1))
        alike = (1 + apart + apart**2 / 3) * np.exp(-apart)  # Matern's with 5/2
        seen = _covariance(curves, prior, alike, curves.trials, curves.times)
        seen[np.diag_indices_from(seen)] += (prior.noise * prior.narrowing**curves.times) ** 2 + 1e-8
        root = np.asarray(np.linalg.cholesky(seen), np.float64)
        explained = _solved(root, curves.figures[:, None])[:, 0]
        likelihood = float(-0.5 * explained @ explained - np.log(np.diag(root)).sum())
        return cls(curves=curves, prior=prior, alike=alike, root=root, explained=explained, likelihood=likelihood)

    def ends(self) -> tuple[Floats, Floats]:
        """Mean and variance of all trials' ends; (trials,) each."""
        prior, end_time = self.prior, self.curves.end_time
        all_trials, times = np.arange(len(self.alike)), np.full(len(self.alike), end_time)
        of_ends = _solved(self.root, _covariance(self.curves, prior, self.alike, all_trials, times))
        before = (1 + prior.drift**2 + prior.own**2) * prior.narrowing ** (2 * end_time) + 2 * OF_ANY_SIZE
        return of_ends.T @ self.explained, before - np.square(of_ends).sum(0)


def _covariance(curves: _Curves, prior: _Prior, alike: Floats, of: NDArray[np.intp], at: Floats) -> Floats:
    """Of what was seen with these trials at these times: shape (figures, len(of))."""
    # There are as many times as rungs: what depends on them alone is calculated once a pair of rungs.
    times, rows = np.unique(curves.times, return_inverse=True)
    columns_at, columns = np.unique(at, return_inverse=True)
    near = np.exp(-np.abs(times[:, None] - columns_at) / prior.memory)
    narrowed = prior.narrowing ** times[:, None] * prior.narrowing**columns_at
    common = OF_ANY_SIZE * (1 + (times[:, None] == columns_at))
    pairs = rows[:, None] * len(columns_at) + columns
    found = np.asarray(alike[np.ix_(curves.trials, of)] * (1 + prior.drift**2 * near).take(pairs))
    same = np.nonzero(curves.trials[:, None] == of)
    found[same] += (prior.own**2 * near).take(pairs[same])
    found *= narrowed.take(pairs)
    found += common.take(pairs)
    return found


def _solved(root: Floats, right: Floats) -> Floats:
    """By a lower triangle, block by block: NumPy solves by whole matrices alone, which costs several times as much."""
    solved = np.empty_like(right)
    for begin in range(0, len(root), BLOCK):
        rows = slice(begin, begin + BLOCK)
        solved[rows] = np.linalg.solve(root[rows, rows], right[rows] - root[rows, :begin] @ solved[:begin])
    return solved
