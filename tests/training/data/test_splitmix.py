from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.splitmix import GAMMA, MASK, hash_text, mix, splitmix64
from tests.training.data.plain_ways import shuffled


def test_agrees_with_the_published_sequence_for_seed_1234567() -> None:
    states = np.array([(1234567 + number * GAMMA) & MASK for number in range(5)], dtype=np.uint64)
    assert splitmix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.integers(0, MASK))
def test_whole_numbers_and_arrays_are_mixed_alike(value: int) -> None:
    assert mix(value) == splitmix64(np.array([value], dtype=np.uint64))[0]


def test_mixing_minds_the_order_of_its_values() -> None:
    assert len({mix(1, 2), mix(2, 1), mix(1), mix(2), mix(1, 2, 0)}) == 5


def test_hashes_of_text_are_fixed_for_ever_and_tell_lists_apart() -> None:
    assert hash_text("split", "headway", "os.py") == 9434158132025328702
    assert len({hash_text("a", "bc"), hash_text("ab", "c"), hash_text("abc"), hash_text("a", "b", "c")}) == 4


@given(st.integers(0, 300), st.integers(0, MASK))
def test_a_shuffle_is_a_permutation(num_rows: int, seed: int) -> None:
    assert sorted(shuffled(num_rows, seed).tolist()) == list(range(num_rows))
