"""Symbolic expressions as torch writes them (`sympy.srepr`): calls of known arithmetic on symbols and numbers.

torch gives them to `sympy.sympify`, which evaluates any Python. Numbers are bounded too: what sympy can calculate it
does at once, and a power of two short numbers may fill the memory.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from .refusal import UnsafeGraph, refuse

ARITHMETIC = {
    *("Add", "Mul", "Pow", "Max", "Min", "Abs", "Mod", "And", "Or", "Not", "Eq", "Ne", "Equality", "Unequality"),
    *("StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"),
    # Of torch.utils._sympy.functions, those that torch knows again.
    *("FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift"),
    *("RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator"),
    *("TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
}
GROWING = {"Pow", "PowByNatural", "FloatPow", "LShift", "RoundDecimal"}
LARGEST_EXPONENT = 64
NUMBERS = {"Integer": 1, "Rational": 2, "Float": 1}
"""With how many arguments."""
SYMBOL = re.compile(r"[a-z]{1,5}\d{1,6}")
NUMBER = re.compile(r"-?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?")
ASSUMPTIONS = {"integer", "positive", "nonnegative", "negative", "nonpositive", "nonzero", "real", "finite", "even"}
CHARACTERS = re.compile(r"[A-Za-z0-9_'(),=. -]{1,20000}")
MOST_OPEN = 60
"""Calls in each other."""
MOST_CALLS = 200
"""In all: sympy multiplies sums out, which doubles them with each factor."""
MOST_SUMS_IN_A_PRODUCT = 8
PRECISIONS_BITS = (15, 53)
"""Of floating-point numbers, as sympy and torch write them."""


@lru_cache(maxsize=4096)
def check_expression(text: str) -> None:
    """Raises `UnsafeGraph`: evaluating it could do more than arithmetic."""
    if not CHARACTERS.fullmatch(text) or "--" in text or "- -" in text:
        raise refuse("an expression has characters that torch does not write", text)
    if text.count("(") > MOST_CALLS:
        raise refuse("an expression is longer than torch writes for sizes", text)
    if _most_open(text) > MOST_OPEN:
        raise refuse("an expression is nested too deeply", text)
    try:
        _check(ast.parse(text, mode="eval").body, in_power=False)
    except (UnsafeGraph, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refuse("an expression is no arithmetic of symbols", text) from error


def _most_open(text: str) -> int:
    now = most = 0
    for character in text:
        now += (character == "(") - (character == ")")
        most = max(most, now)
    return most


def _check(node: ast.expr, *, in_power: bool) -> None:
    if _is_bool(node):
        return
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if not isinstance(node, ast.Call) or not name:
        raise UnsafeGraph(ast.dump(node)[:120])
    if name == "Symbol":
        _check_symbol(node)
    elif name in NUMBERS:
        _check_number(node, NUMBERS[name])
    elif name in ARITHMETIC and not node.keywords:
        if name in GROWING and (in_power or len(node.args) != 2 or not _is_small(node.args[1])):
            raise UnsafeGraph(name)
        if name == "Mul" and sum(_is_sum(each) for each in node.args) > MOST_SUMS_IN_A_PRODUCT:
            raise UnsafeGraph(name)
        for argument in node.args:
            _check(argument, in_power=in_power or name in GROWING)
    else:
        raise UnsafeGraph(name)


def _is_sum(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "Add" for each in ast.walk(node))


def _is_bool(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _check_symbol(node: ast.Call) -> None:
    (name,) = node.args
    known = all(each.arg in ASSUMPTIONS and _is_bool(each.value) for each in node.keywords)
    is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
    if not known or not is_text or not SYMBOL.fullmatch(ast.literal_eval(name)):
        raise UnsafeGraph("Symbol")


def _check_number(node: ast.Call, num_arguments: int) -> None:
    if len(node.args) != num_arguments or any(each.arg != "precision" for each in node.keywords):
        raise UnsafeGraph("number")
    if any(ast.literal_eval(each.value) not in PRECISIONS_BITS for each in node.keywords):
        raise UnsafeGraph("precision")
    for argument in node.args:
        value = ast.literal_eval(argument)
        if isinstance(value, bool) or not NUMBER.fullmatch(str(value)):
            raise UnsafeGraph("number")


def _is_small(node: ast.expr) -> bool:
    """One number, for what is calculated of small ones may be large: an exponent of 64 * 64 * 64 fills the memory."""
    is_number = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NUMBERS
    if not is_number:
        return False
    numbers = [ast.literal_eval(each) for each in node.args]  # type: ignore[attr-defined]
    return all(abs(float(each)) <= LARGEST_EXPONENT for each in numbers if NUMBER.fullmatch(str(each)))
