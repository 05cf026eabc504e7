"""Arithmetic of a pipeline file: the numbers that Python has, and never code."""

from __future__ import annotations

import contextlib
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.tasks.search.expressions import Operand, parse

VALUES: dict[str, Operand] = {"recipe.model.width": 32, "lr": 0.5, "kind": "muon", "tied": True, "none": None}


def value(text: str) -> Operand:
    return parse(text).value(VALUES.__getitem__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4 * recipe.model.width", 128),
        ("recipe.model.width / 2", 16),
        ("recipe.model.width / 5", 6.4),
        ("recipe.model.width // 5 % 4", 2),
        ("-2 ** 2 + 1", -3),
        ("round(lr * 3)", 2),
        ("max(8, min(recipe.model.width, 16), abs(-3))", 16),
        ("lr / 10 if kind == 'muon' else lr", 0.05),
        ("8 <= recipe.model.width < 64 and not kind == 'sgd'", True),
        ("tied == true and none == null or false", True),
        ("'cosine'", "cosine"),
    ],
)
def test_it_has_the_value_that_it_has_on_paper(text: str, expected: Operand) -> None:
    assert value(text) == expected and type(value(text)) is type(expected)


@given(st.integers(-50, 50), st.integers(-50, 50), st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "**"]))
def test_operators_are_pythons(left: int, right: int, sign: str) -> None:
    text = f"({left}) {sign} ({right})"
    try:
        expected = eval(text)  # of two numbers that the test made
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="has no value there"):
            value(text)
        return
    if abs(expected) <= 1e100:
        assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "(1).__class__",
        "lr.__class__()",
        "[1, 2]",
        "lambda: 1",
        "f'{lr}'",
        "x := 3",
        "open('/etc/passwd')",
        "max(*[1])",
        "round(1.5, ndigits=1)",
        "max()",
        "max(1)",
        "abs(1, 2)",
        "round(1, -99999999)",
        "'a' in 'ab'",
        "1 if",
        "",
        "1 << 90",
        "9" * 201,
        "(" * 90 + "1" + ")" * 90 + " x",
        "1j",
        "1e400 - 1e400",
        "0x1for x in y",
        "b'x'",
        "\0",
    ],
)
def test_what_is_no_arithmetic_is_refused_when_it_is_read(text: str) -> None:
    with warnings.catch_warnings(), pytest.raises(ValueError, match=r"expression|too large"):
        warnings.simplefilter("error")
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "9 ** 9 ** 9",
        "(9 ** 64) ** 64",
        "1e99 * 1e99",
        "(-8) ** 0.5",
        "kind + 1",
        "tied * 2",
        "none < 1",
        "-kind",
    ],
)
def test_what_has_no_value_says_so_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="has no value there"):
        value(text)


@given(st.text(alphabet="0123456789.()+-*/% ,abw<=>'\"\\\n#:[]{}", max_size=40))
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text).value(lambda name: 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("decay > 0.9", "null is neither more nor less than 0.9"),
        ("0.9 <= decay", "0.9 is neither more nor less than null"),
        ("decay + 1 > 2", "`decay` is null, which is no number"),
        ("truth * 2", "`truth` is true, which is no number"),
    ],
)
def test_what_has_no_value_is_named_as_the_file_has_it(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"has no value there.*{problem}"):
        parse(text).value({"decay": None, "truth": True}.__getitem__)
