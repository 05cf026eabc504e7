"""Arithmetic in a pipeline file: `4 * recipe.model.width`, of the numbers and words of its settings.

Parsed by Python's grammar and evaluated by hand: what is no number, word, name, operator or one of four functions is
refused, so that no text of a file is ever code.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Operand = bool | int | float | str | None
Names = Callable[[str], Operand]
"""What a dotted name stands for; raises `ValueError` where it stands for nothing."""

MAX_CHARACTERS: Final = 200
MOST: Final = 1e100
"""In size, of any number on the way: so no power fills the memory."""

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {"abs": abs, "max": max, "min": min, "round": round}
_OF_SEVERAL: Final = ("max", "min")
"""Of two numbers or more; the others of one. Digits to round to could take Python for ever."""
_PLACE: Final = re.compile(r"(?<=[A-Za-z_])\.(\d+)(?=\.[A-Za-z_])")
"""In a list, between two words of a name: `order.mix.0.weight`, which Python writes `order.mix[0].weight`."""
_CONSTANTS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}
"""As YAML has them."""
_KNOWN: Final = (
    "numbers, words in quotes, names, + - * / // % **, comparisons, and, or, not, `a if b else c`, abs(a), round(a), "
    "max(a, b) and min(a, b)"
)


@dataclass(frozen=True, slots=True)
class Expression:
    """One that was parsed. As text, what the file says."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def value(self, names: Names) -> Operand:
        """
        Raises:
            ValueError: it has no value of these: a name stands for nothing, a division by zero, words that are added.
        """
        try:
            value: Operand = _evaluated(self.tree, names)
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"`{self.text}` has no value there ({error})") from error
        return value

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Expression:
    """Raises `ValueError`: it is none, with what an expression may hold."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {MAX_CHARACTERS} characters, and this one {len(text):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python finds odd, such as `0x1for`, is refused or means what it says
            tree = ast.parse(_PLACE.sub(r"[\1]", text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"`{text}` is no expression ({reason}): use {_KNOWN}") from error
    names: set[str] = set()
    _require_known(tree, text, names)
    return Expression(text.strip(), tree, frozenset(names))


def _require_known(node: ast.expr, text: str, names: set[str]) -> None:
    match node:
        case ast.Constant(value=float(value)) if not math.isfinite(value):
            raise ValueError(f"`{text}`: a number of it is too large")
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return None
        case ast.Name() | ast.Attribute() | ast.Subscript():
            if (name := _dotted(node)) is not None:
                names.update({name} - _CONSTANTS.keys())
                return None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _require_all((left, right), text, names)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            return _require_known(operand, text, names)
        case ast.BoolOp(values=values):
            return _require_all(values, text, names)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(each) in _COMPARED for each in ops):
            return _require_all((left, *others), text, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _require_all((test, body, orelse), text, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in _FUNCTIONS and (len(args) > 1) == (name in _OF_SEVERAL) and args
        ):
            return _require_all(args, text, names)
    raise ValueError(f"`{text}`: `{ast.unparse(node)}` is nothing that an expression may hold: use {_KNOWN}")


def _require_all(nodes: tuple[ast.expr, ...] | list[ast.expr], text: str, names: set[str]) -> None:
    for node in nodes:
        _require_known(node, text, names)


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=attr):
            before = _dotted(inner)
            return None if before is None else f"{before}.{attr}"
        case ast.Subscript(value=inner, slice=ast.Constant(value=int(place))) if not isinstance(place, bool):
            before = _dotted(inner)
            return None if before is None else f"{before}.{place}"
    return None


def _evaluated(node: ast.expr, names: Names) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute() | ast.Subscript():
            name = _dotted(node)
            assert name is not None  # as it was parsed
            return _CONSTANTS[name] if name in _CONSTANTS else names(name)
        case ast.BinOp(left=left, op=op, right=right):
            return _calculated(type(op), _number(left, names), _number(right, names))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluated(operand, names)
        case ast.UnaryOp(op=op, operand=operand):
            number = _number(operand, names)
            return -number if isinstance(op, ast.USub) else number
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluated(each, names) for each in values)
        case ast.BoolOp(values=values):
            return any(_evaluated(each, names) for each in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_evaluated(each, names) for each in (left, *others)]
            pairs = zip(ops, sides, sides[1:], strict=False)  # the last side is compared with nothing
            return all(_compared(type(op), one, other) for op, one, other in pairs)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluated(body if _evaluated(test, names) else orelse, names)
        case ast.Call(func=ast.Name(id=function), args=args):
            return _bounded(_FUNCTIONS[function](*(_number(each, names) for each in args)))
    raise AssertionError(ast.dump(node))  # refused when it was parsed


def _number(node: ast.expr, names: Names) -> Any:
    value = _evaluated(node, names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`{ast.unparse(node)}` is {_as_written(value)}, which is no number")
    return value


def _compared(op: type[ast.cmpop], one: Any, other: Any) -> bool:
    try:
        return _COMPARED[op](one, other)
    except TypeError as error:
        raise TypeError(f"{_as_written(one)} is neither more nor less than {_as_written(other)}") from error


def _as_written(value: Operand) -> str:
    """As YAML has it."""
    return next((word for word, constant in _CONSTANTS.items() if constant is value), repr(value))


def _calculated(op: type[ast.operator], left: Any, right: Any) -> Any:
    if op is ast.Pow and isinstance(left, int) and abs(right) * math.log10(max(abs(left), 1)) > math.log10(MOST):
        raise OverflowError("its numbers grow too large")
    if op is ast.Div and isinstance(left, int) and isinstance(right, int) and right and left % right == 0:
        # Half of a width is a width, and a whole number.
        return left // right
    return _bounded(_BINARY[op](left, right))


def _bounded(number: Any) -> Any:
    if isinstance(number, complex) or not abs(number) <= MOST:
        raise OverflowError("its numbers grow too large, or are none")
    return number
