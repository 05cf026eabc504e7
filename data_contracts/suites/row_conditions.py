"""A `row_condition` of a Great Expectations suite as SQL: which rows an expectation speaks of.

Read are condition objects of Great Expectations 1.24, queries of pandas (`condition_parser: pandas`) made of
comparisons with constants or columns, `in`, `isnull`, `notnull`, `and`, `or` and `not`, and the one comparison of the
parser `great_expectations`. As in pandas, a comparison with a missing value is false, and only `!=` and `not in` are
true; with the parser `great_expectations`, which is SQL's, these too are false. Anything else is refused.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.data_contracts.scans.rows_database import identifier, literal
from headway.data_contracts.suites.literals import (
    NUMERIC,
    UnsupportedExpectation,
    bounds_sql,
    comparable_sql,
    member_sql,
    set_sql,
)
from headway.data_contracts.types.type_families import family

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in",
}  # fmt: skip
_NULLITY = {"isnull": True, "isna": True, "notnull": False, "notna": False}
_TOKENS = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|`([^`]+)`|([&|])""")
_GREAT_EXPECTATIONS = re.compile(
    r"""\s*col\("(?P<column>[^"]+)"\)\s*(?:(?P<notnull>\.notnull\(\))|(?P<operator>>=|<=|==|!=|>|<)\s*(?:"""
    r"""(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<date>date\()?(?P<quote>["'])(?P<text>[^"']*)(?P=quote)"""
    r"""(?(date)\))))\s*""",
    re.IGNORECASE,
)
MAX_CONDITIONS = 100


@dataclass(frozen=True, slots=True)
class ColumnName:
    name: str


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    column: str
    operator: str
    operand: Any
    """A constant, a list of them, or a `ColumnName`."""
    is_sql: bool = False
    """Whether a missing value is unequal to nothing."""


@dataclass(frozen=True, slots=True)
class Nullity:
    column: str
    is_null: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """The value of a column of type bool."""

    column: str


@dataclass(frozen=True, slots=True)
class Junction:
    word: str
    """`AND`, `OR`; `NOT` of one condition."""
    parts: tuple[Condition, ...]


Condition = ColumnComparison | Nullity | Truth | Junction


def read_condition(given: Any, parser: Any) -> Condition | None:
    """The condition of an expectation; None: it speaks of every row.

    Raises:
        UnsupportedExpectation: it is written in a way that is not read here.
    """
    if given is None or given == "":
        return None
    condition = _from_object(given) if isinstance(given, dict) else _from_text(given, parser)
    # Bounded: every part becomes SQL, and nests.
    if sum(1 for _ in _leaves(condition)) > MAX_CONDITIONS:
        raise UnsupportedExpectation(f"the row_condition has more than {MAX_CONDITIONS} parts")
    return condition


def columns_of(condition: Condition | None) -> tuple[str, ...]:
    """The columns that a condition looks at."""
    found: dict[str, None] = {}
    for leaf in _leaves(condition) if condition is not None else ():
        found[leaf.column] = None
        if isinstance(leaf, ColumnComparison) and isinstance(leaf.operand, ColumnName):
            found[leaf.operand.name] = None
    return tuple(found)


def _leaves(condition: Condition) -> Iterator[ColumnComparison | Nullity | Truth]:
    if isinstance(condition, Junction):
        for part in condition.parts:
            yield from _leaves(part)
    else:
        yield condition


def _from_object(given: dict[str, Any]) -> Condition:
    kind = given.get("type")
    if kind == "pass_through":
        # A query of pandas inside an object, as Great Expectations writes what it was given.
        return _from_pandas(given.get("pass_through_filter"))
    if kind in ("and", "or"):
        parts = given.get("conditions")
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            raise UnsupportedExpectation(f"the row_condition `{kind}` has no conditions")
        return Junction(kind.upper(), tuple(_from_object(part) for part in parts))
    column = given.get("column")
    name = column.get("name") if isinstance(column, dict) else None
    if not isinstance(name, str):
        raise UnsupportedExpectation("the row_condition names no column")
    if kind == "nullity" and isinstance(given.get("is_null"), bool):
        return Nullity(name, given["is_null"])
    if kind != "comparison":
        raise UnsupportedExpectation(f"the row_condition is of the unknown type {kind!r}")
    operator = {"IN": "in", "NOT_IN": "not in"}.get(str(given.get("operator")), given.get("operator"))
    return _comparison(name, operator, given.get("parameter"))


def _comparison(column: str, operator: Any, operand: Any) -> ColumnComparison:
    is_membership = operator in ("in", "not in")
    plain = operand if isinstance(operand, list) and is_membership else [operand]
    # Only what both pandas and SQL mean alike is taken.
    if operator not in _OPERATORS.values() or (is_membership and not isinstance(operand, list)):
        raise UnsupportedExpectation(f"the row_condition has {operator!r} beside {type(operand).__name__}")
    if not all(isinstance(value, bool | int | float | str | ColumnName) for value in plain):
        raise UnsupportedExpectation(
            "the row_condition compares with something that is neither a number, text nor bool"
        )
    return ColumnComparison(column, operator, operand)


def _from_text(given: Any, parser: Any) -> Condition:
    if not isinstance(given, str):
        raise UnsupportedExpectation("the row_condition is neither text nor a condition")
    if parser == "pandas":
        return _from_pandas(given)
    if parser in ("great_expectations", "great_expectations__experimental__"):
        return _from_great_expectations(given)
    raise UnsupportedExpectation(
        f"a row_condition with the condition_parser {parser!r} is not read here (`pandas` and `great_expectations` are)"
    )


def _from_great_expectations(text: str) -> Condition:
    match = _GREAT_EXPECTATIONS.fullmatch(text)
    if match is None:
        raise UnsupportedExpectation('the row_condition is no comparison such as col("x") > 2')
    if match["notnull"]:
        return Nullity(match["column"], False)
    number = match["number"]
    # SQL keeps integers and fractions apart, and comparisons depend on it.
    operand = match["text"] if number is None else float(number) if set(number) & set(".eE") else int(number)
    return ColumnComparison(match["column"], match["operator"], operand, is_sql=True)


def _from_pandas(text: Any) -> Condition:
    if not isinstance(text, str):
        raise UnsupportedExpectation("the row_condition is no text")
    names: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        if match[1]:
            # Quoted text is passed by: an ampersand in it is no operator.
            return match[1]
        if match[3]:
            return " and " if match[3] == "&" else " or "
        # Names in backticks may hold blanks, which Python's parser does not take.
        name = f"_column_{len(names)}_"
        names[name] = match[2]
        return name

    try:
        # Parsed as Python, never evaluated: nothing of the expression is run.
        tree = ast.parse(_TOKENS.sub(replaced, text).strip(), mode="eval")
        return _from_tree(tree.body, names)
    # Nested deeply enough, an expression exhausts the parser.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, UnsupportedExpectation):
            raise
        raise UnsupportedExpectation("the row_condition is no query of pandas") from None


def _from_tree(node: ast.expr, names: Mapping[str, str]) -> Condition:
    if isinstance(node, ast.BoolOp):
        word = "AND" if isinstance(node.op, ast.And) else "OR"
        return Junction(word, tuple(_from_tree(part, names) for part in node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        return Junction("NOT", (_from_tree(node.operand, names),))
    if isinstance(node, ast.Name):
        return Truth(names.get(node.id, node.id))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.attr in _NULLITY
        and not node.args
        and not node.keywords
    ):
        return Nullity(names.get(node.func.value.id, node.func.value.id), _NULLITY[node.func.attr])
    if isinstance(node, ast.Compare):
        operands = [_operand(each, names) for each in (node.left, *node.comparators)]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        # A chained comparison is a conjunction, as in Python.
        parts = tuple(_compare(left, _OPERATORS.get(type(operator), ""), right) for left, operator, right in pairs)
        return parts[0] if len(parts) == 1 else Junction("AND", parts)
    raise UnsupportedExpectation(f"the row_condition holds {ast.unparse(node)!r}, which is not read here")


def _operand(node: ast.expr, names: Mapping[str, str]) -> Any:
    if isinstance(node, ast.Name):
        return ColumnName(names.get(node.id, node.id))
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple | set) else value


def _compare(left: Any, operator: str, right: Any) -> ColumnComparison:
    if isinstance(left, ColumnName):
        return _comparison(left.name, operator, right)
    # The column stands on the right; the comparison is turned round.
    if isinstance(right, ColumnName) and operator in FLIPPED:
        return _comparison(right.name, FLIPPED[operator], left)
    raise UnsupportedExpectation("the row_condition compares no column")


def condition_sql(condition: Condition | None, types: Mapping[str, str]) -> str:
    """The condition in SQL: true or false of every row, never null.

    Args:
        types: of every column, by name.

    Raises:
        UnsupportedExpectation: a column is missing, or of a type that is not compared with what is given.
    """
    if condition is None:
        return "TRUE"
    if isinstance(condition, Junction):
        parts = [f"({condition_sql(part, types)})" for part in condition.parts]
        return f"NOT {parts[0]}" if condition.word == "NOT" else f" {condition.word} ".join(parts)
    column, type_name = identifier(condition.column), type_of(condition.column, types)
    if isinstance(condition, Nullity):
        # NaN counts as missing, as in pandas.
        is_null = f"{column} IS NULL" + (f" OR isnan({column})" if family(type_name) == "float" else "")
        return f"coalesce({is_null}, FALSE)" if condition.is_null else f"NOT coalesce({is_null}, FALSE)"
    if isinstance(condition, Truth):
        if family(type_name) != "bool":
            raise UnsupportedExpectation(
                f"the row_condition takes {condition.column} for a truth value, and it is {type_name}"
            )
        return f"coalesce({column}, FALSE)"
    return _comparison_sql(condition, column, type_name, types)


def type_of(column: str, types: Mapping[str, str]) -> str:
    """Raises `UnsupportedExpectation`: the column is missing."""
    if column not in types:
        raise UnsupportedExpectation(f"the column {column} is missing")
    return types[column]


def _comparison_sql(expectation: ColumnComparison, column: str, type_name: str, types: Mapping[str, str]) -> str:
    negated = expectation.operator in ("!=", "not in")
    if isinstance(expectation.operand, ColumnName):
        holds = _columns_sql(expectation, column, type_name, types)
    elif expectation.operator in ("==", "!=", "in", "not in"):
        values = expectation.operand if isinstance(expectation.operand, list) else [expectation.operand]
        members = set_sql((_as_meant(value, type_name, expectation) for value in values), type_name)
        holds = f"{member_sql(column, type_name)} IN ({', '.join(members)})" if members else "FALSE"
    else:
        holds = _order_sql(expectation, column, type_name)
    if not negated:
        # A missing value makes SQL's comparison null, and pandas' false.
        return f"coalesce({holds}, FALSE)"
    # Unequal to a missing value: true in pandas, false in SQL.
    return (
        f"{column} IS NOT NULL AND NOT coalesce({holds}, FALSE)"
        if expectation.is_sql
        else f"NOT coalesce({holds}, FALSE)"
    )


def _as_meant(value: Any, type_name: str, expectation: ColumnComparison) -> Any:
    """SQL takes a text beside a number for a number."""
    if expectation.is_sql and isinstance(value, str) and family(type_name) in NUMERIC:
        try:
            return float(value) if set(value) & set(".eE") else int(value)
        except ValueError:
            raise UnsupportedExpectation(f"the row_condition compares {type_name} with {value!r}") from None
    return value


def _order_sql(expectation: ColumnComparison, column: str, type_name: str) -> str:
    value = _as_meant(expectation.operand, type_name, expectation)
    if family(type_name) == "string" and isinstance(value, str):
        return f"{column} {expectation.operator} {literal(value)}"
    if isinstance(value, str) and family(type_name) in NUMERIC:
        raise UnsupportedExpectation(f"the row_condition compares {type_name} with the text {value!r}")
    bound = {"low": value} if expectation.operator.startswith(">") else {"high": value}
    is_strict = len(expectation.operator) == 1
    expression = comparable_sql(column, type_name)
    return bounds_sql(expression, type_name, **bound, strict_min=is_strict, strict_max=is_strict)


def _columns_sql(expectation: ColumnComparison, column: str, type_name: str, types: Mapping[str, str]) -> str:
    other, other_type = identifier(expectation.operand.name), type_of(expectation.operand.name, types)
    relation = {"==": "=", "!=": "="}.get(expectation.operator, expectation.operator)
    return pair_sql(column, type_name, other, other_type, relation)


def pair_sql(left: str, left_type: str, right: str, right_type: str, relation: str) -> str:
    """A comparison of two columns; null where either has no value, and false beside NaN.

    Raises:
        UnsupportedExpectation: they are of types that are not compared.
    """
    kinds = (family(left_type), family(right_type))
    is_alike = all(kind in NUMERIC for kind in kinds) or kinds == ("string", "string")
    # Timestamps of two units or zones would need a conversion that neither side asked for.
    is_alike = is_alike or kinds == ("date", "date") or (kinds[0] == "timestamp" and left_type == right_type)
    if not is_alike:
        raise UnsupportedExpectation(f"{left_type} is not compared with {right_type}")
    if kinds[0] in ("string", "timestamp", "date"):
        return f"{left} {relation} {right}"
    sides = (comparable_sql(left, left_type), comparable_sql(right, right_type))
    found = [f"{sides[0]} {relation} {sides[1]}"]
    # DuckDB holds NaN to be above every number, and equal to itself.
    found += [f"NOT isnan({side})" for side, kind in zip(sides, kinds, strict=True) if kind == "float"]
    return " AND ".join(found)
