"""The order of the suite names files that are there, and every test has one place in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.longest_first import LONGEST_FIRST, unit
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", [name for names in LONGEST_FIRST for name in names])
def test_every_name_is_of_tests_that_are_there(name: str) -> None:
    assert (REPOSITORY / name).exists()


def test_the_longest_name_that_fits_decides_and_what_is_short_comes_last() -> None:
    assert unit("tests/e2e/test_windows.py::test_x") != unit("tests/e2e/test_verify.py::test_x") == 0
    assert unit("tests/data_contracts/store/test_globs.py::test_x") == len(LONGEST_FIRST)


def test_a_wait_gives_what_was_waited_for_and_says_what_never_came() -> None:
    answers = iter([0, "", "here"])
    assert wait_until(lambda: next(answers)) == "here"
    with pytest.raises(AssertionError, match=r"a thing: not within 0\.01 s"):
        wait_until(lambda: False, 0.01, "a thing")
