"""Symbolic expressions as torch writes them (`sympy.srepr`): calls of known arithmetic on symbols and numbers.

torch gives them to `sympy.sympify`, which evaluates any Python. Numbers are bounded too: what sympy can calculate it
does at once, and a power of two short numbers may fill the memory. So are the terms that sums can be multiplied out to.
"""

from __future__ import annotations

import ast
import math
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
MAX_OPEN = 60
"""Calls in each other."""
MAX_CALLS = 200
"""In all."""
MAX_TERMS = 128
"""That sums may come to when they are multiplied out, as sympy does to divide, compare and cancel them."""
PRECISIONS_BITS = (15, 53)
"""Of floating-point numbers, as sympy and torch write them."""


@lru_cache(maxsize=4096)
def check_expression(text: str) -> None:
    """Raises `UnsafeGraph`: evaluating it could do more than arithmetic."""
    if not CHARACTERS.fullmatch(text) or "--" in text or "- -" in text:
        raise refuse("an expression has characters that torch does not write", text)
    if text.count("(") > MAX_CALLS:
        raise refuse("an expression is longer than torch writes for sizes", text)
    if _most_open(text) > MAX_OPEN:
        raise refuse("an expression is nested too deeply", text)
    try:
        expression = ast.parse(text, mode="eval").body
        _check(expression, in_power=False)
        if _most_terms(expression) > MAX_TERMS:
            raise UnsafeGraph("terms")
    except (UnsafeGraph, SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
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
        for argument in node.args:
            _check(argument, in_power=in_power or name in GROWING)
    else:
        raise UnsafeGraph(name)


def _most_terms(node: ast.expr) -> int:
    """Into how many terms a checked expression can be multiplied out, or one more than are taken.

    A sum has those of all its parts, a product each with each, a power the choices of as many as it raises to.
    Functions compare or divide their arguments: those are taken for multiplied, and each is set against each.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id in {"Symbol", *NUMBERS}:
        return 1
    name = node.func.id
    terms = [_most_terms(each) for each in node.args]
    if name == "Add":
        found = sum(terms)
    elif name in GROWING:
        most = terms[0]
        found = math.comb(most - 1 + _exponent(node.args[1]), most - 1) if most > 1 else 1
    elif name == "Mul":
        found = math.prod(terms)
    else:
        found = max(math.prod(terms), len(terms) ** 2)
    return min(found, MAX_TERMS + 1)


def _exponent(node: ast.expr) -> int:
    """The size of an exponent, of a fraction the next whole number: at most `LARGEST_EXPONENT`, as it was checked."""
    numbers = [abs(float(ast.literal_eval(each))) for each in node.args]  # type: ignore[attr-defined]
    return math.ceil(numbers[0] / (numbers[1] if len(numbers) > 1 else 1))


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
    # Of those that are not: what they are is refused where they are looked at.
    return all(NUMBER.fullmatch(str(each)) for each in numbers) and _exponent(node) <= LARGEST_EXPONENT
