"""What a range test, trials of micro-batches and a compiled model say; and when they say nothing."""

from __future__ import annotations

import math
import random

import pytest

from headway.tasks.tuning.advice import Compiled, LearningRates, evaluate_compiled, factors, larger
from headway.tasks.tuning.choice import Measured

RATES = tuple(0.01 * each for each in factors())


def curve(falls_at: float, lowest_at: float, noise: float, seed: int = 0) -> LearningRates:
    """The loss of ten classes: flat, falling from one rate to another by two nats, then rising."""
    draw, losses = random.Random(seed), list[float]()
    for rate in RATES:
        share = math.log(max(rate / falls_at, 1.0)) / math.log(lowest_at / falls_at)
        loss = 2.3 - 2 * share if share <= 1 else 0.3 + 5 * (share - 1)
        losses.append(loss + draw.gauss(0, noise))
    return LearningRates(rates=RATES, losses=tuple(losses))


@pytest.mark.parametrize("seed", range(5))
def test_the_range_to_search_goes_from_where_the_loss_falls_to_where_it_is_lowest(seed: int) -> None:
    found = curve(1e-3, 0.1, noise=0.03, seed=seed)
    assert found.wanted is not None and found.diverges_at is not None
    low, high = found.wanted
    assert 1e-3 < low < 4e-3 and 0.05 < high < 0.2 < found.diverges_at


@pytest.mark.parametrize("seed", range(10))
def test_an_easy_batch_before_the_loss_moves_does_not_begin_the_range(seed: int) -> None:
    found = curve(1e-2, 1.0, noise=0.3, seed=seed).wanted
    assert found is not None and found[0] > 3e-3


@pytest.mark.parametrize("seed", range(1, 10))
def test_where_no_rate_lowers_the_loss_by_more_than_batches_differ_there_is_no_range(seed: int) -> None:
    draw = random.Random(seed)
    flat = LearningRates(rates=RATES, losses=tuple(2.3 + draw.gauss(0, 0.3) for _ in RATES))
    assert flat.wanted is None
    assert flat.diverges_at is None, "and where it rises by no more than that, none diverges"


def test_a_loss_that_is_not_finite_ends_the_test_and_is_where_it_diverges() -> None:
    whole = curve(1e-3, 0.1, noise=0.0)
    cut = LearningRates(rates=RATES, losses=whole.losses[:85])
    assert cut.wanted == whole.wanted and cut.diverges_at == pytest.approx(RATES[85], rel=0.05)
    at_once = LearningRates(rates=RATES, losses=())
    assert at_once.wanted is None and at_once.diverges_at == pytest.approx(RATES[0], rel=0.05)


def test_micro_batches_are_doublings_that_cut_the_global_batch_evenly() -> None:
    assert larger(8, 64, 6) == [8, 16, 32, 64]
    assert larger(8, 24, 6) == [8]
    assert larger(1, 1024, 3) == [1, 2, 4]


def compiled(
    compiled_s: tuple[float, ...] = (0.5, 0.5, 0.5),
    *,
    state: str = "a" * 64,
    losses: str = "b" * 64,
    compiling_s: float = 60.0,
    run_steps: int = 1000,
) -> Compiled:
    """Beside steps of a second each."""
    return evaluate_compiled(
        [
            Measured(shown="as it is", settings={}, rounds_s=(1.0, 1.0, 1.0)),
            Measured(shown="compiled", settings={"training.compile": True}, rounds_s=compiled_s),
        ],
        ["a" * 64, state],
        ["b" * 64, losses],
        num_steps=38,
        compiling_s=compiling_s,
        run_steps=run_steps,
    )


@pytest.mark.parametrize("moved", ["state", "losses"])
def test_compiling_that_moves_a_bit_is_refused_however_much_faster_it_is(moved: str) -> None:
    found = compiled((0.01, 0.01, 0.01), **{moved: "c" * 64})  # type: ignore[arg-type]
    assert not found.is_better
    assert f"it moves bits: 38 steps come to {moved} " in found.why and "c" * 16 + " with it" in found.why


def test_the_time_to_compile_counts_against_what_a_whole_run_saves() -> None:
    found = compiled(run_steps=121)
    assert found.is_better and "compiled is 50.0 % faster" in found.why
    assert "compiling takes 60 s, a run's 121 steps save 60.5 s" in found.why
    assert not compiled(run_steps=120).is_better


def test_compiling_that_is_no_faster_than_rounds_spread_is_not_worth_it() -> None:
    for seconds in ((1.1, 1.1, 1.1), (0.99, 0.99, 0.99), (0.5, 0.5, 1.2)):
        found = compiled(seconds, run_steps=10**9)
        assert not found.is_better and found.why.startswith("the same bits after 38 steps; ")
