"""Islands whose gradients travel as whole numbers: what is rounded off, kept, taken back, and never lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.training.config.communication_spec import LARGEST_SUM, IntegerCompressionSpec
from headway.training.ranks.communication import Collectives, TreeExchange
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.integer_exchange import IntegerExchange

CPU = torch.device("cpu")
ALONE = Collectives(ProcessGroup(rank=0, world_size=1, device=CPU))
BLOCK = 32
LENGTH = 4 * BLOCK


def exchange(kind="int8", islands=4, *, feedback=True):
    spec = IntegerCompressionSpec(kind=kind, islands=islands, feedback=feedback, block=BLOCK)
    return IntegerExchange(spec, ALONE, TreeExchange([ALONE]), islands=range(islands), length=LENGTH, device=CPU)


def summed(of, rows, buckets=(LENGTH,)):
    """The sum of some islands' gradients, in buckets of these lengths."""
    rows = rows.clone()
    first = 0
    for length in buckets:
        of.start([row[first : first + length] for row in rows])
        first += length
    of.finish()
    return rows[-1]


def gradients(islands=4, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(islands, LENGTH, generator=draw) * 10.0 ** torch.randint(
        -3, 4, (islands, LENGTH), generator=draw
    )


@pytest.mark.parametrize(
    ("kind", "islands"), [*(("int8", islands) for islands in (1, 2, 4, 16, 64)), ("int4", 1), ("int4", 2), ("int4", 4)]
)
def test_values_are_rounded_to_a_step_of_the_largest_of_their_block_and_the_rest_is_fed_back(kind, islands):
    of, rows = exchange(kind, islands), gradients(islands)
    total = summed(of, rows)
    largest = rows.abs().view(islands, -1, BLOCK).amax(dim=(0, 2))
    # A scale is a power of two: at most twice as coarse as it has to be.
    step = (2 * largest / (LARGEST_SUM[kind] // islands)).repeat_interleave(BLOCK)
    assert bool(((total - rows.sum(dim=0)).abs() <= islands * step / 2 * 1.0001).all())
    assert bool((of.residuals.abs() <= step / 2 * 1.0001).all())
    assert torch.allclose(total + of.residuals.sum(dim=0), rows.sum(dim=0), rtol=1e-5, atol=float(largest.max()) * 1e-6)


def test_what_was_rounded_off_comes_with_later_steps():
    """The sum over many steps has the error of one step alone, and without feedback one that grows."""
    rows = gradients()
    for feedback, few in ((True, 1.0), (False, 5.0)):
        of = exchange(feedback=feedback)
        total = sum(summed(of, rows) for _ in range(50))
        error = float((total - 50 * rows.sum(dim=0)).abs().max())
        one = float((summed(exchange(feedback=False), rows) - rows.sum(dim=0)).abs().max())
        assert (error <= 4 * one) == feedback, few


def test_int32_is_next_to_exact():
    rows = gradients()
    total = summed(exchange("int32", feedback=False), rows)
    assert float((total.double() - rows.double().sum(dim=0)).abs().max() / rows.abs().max()) < 1e-6


@given(st.lists(st.sampled_from([1, 2]), min_size=2, max_size=4).filter(lambda sizes: sum(sizes) == 4))
def test_buckets_decide_no_bit(sizes):
    rows = gradients()
    cut, whole = exchange(), exchange()
    for _ in range(2):
        assert torch.equal(summed(cut, rows, [size * BLOCK for size in sizes]), summed(whole, rows))
        assert torch.equal(cut.residuals, whole.residuals)


@pytest.mark.parametrize("kind", ["int8", "int32"])
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_shows_in_the_sum_and_leaves_nothing_when_its_step_is_discarded(
    kind, feedback, value
):
    of, rows = exchange(kind, feedback=feedback), gradients()
    before = summed(of, rows)
    kept = of.residuals.clone()
    broken = rows.clone()
    broken[2, BLOCK + 3] = value
    total = summed(of, broken)
    assert not bool(torch.isfinite(total[BLOCK : 2 * BLOCK]).any()), "whatever block it is in"
    assert bool(torch.isfinite(total[:BLOCK]).all())
    of.discard()
    assert torch.equal(of.residuals, kept)
    again = summed(of, rows)
    if not feedback:
        assert torch.equal(again, before)
    assert bool(torch.isfinite(again).all())


@pytest.mark.parametrize("exponents", [(0, 0), (10, 11), (3, -5)])
def test_a_loss_scale_that_moves_changes_no_bit_of_what_it_scales(exponents):
    rows = gradients()
    plain, scaled = exchange(), exchange()
    for exponent in exponents:
        expected = summed(plain, rows)
        scaled.loss_scale = 2.0**exponent
        assert torch.equal(summed(scaled, rows * 2.0**exponent) / 2.0**exponent, expected)
    assert torch.equal(scaled.residuals, plain.residuals)


def test_zeros_and_the_smallest_numbers_are_no_trouble():
    of = exchange()
    assert torch.equal(summed(of, torch.zeros(4, LENGTH)), torch.zeros(LENGTH))
    tiny = torch.full((4, LENGTH), 1e-42)
    assert bool(torch.isfinite(summed(of, tiny)).all())
    huge = torch.full((4, LENGTH), 3e37)
    assert torch.allclose(summed(exchange(), huge), huge.sum(dim=0), rtol=0.05)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "int8", "islands": 3}, "islands: 3 is no power of two from 1 to 64"),
        ({"kind": "int8", "islands": 128}, "islands: 128 is no power of two from 1 to 64"),
        ({"kind": "int8", "block": 100}, "block: 100 is no power of two from 32 to 65,536"),
        ({"kind": "int2"}, "'int8' or 'int32'"),
    ],
)
def test_what_is_no_number_of_islands_or_block_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        IntegerCompressionSpec.model_validate(spec)
