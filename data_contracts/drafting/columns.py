"""A column of a drafted contract: what was seen of it, as constraints that hold and comments that ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from headway.data_contracts.drafting.bounds import longest, widened
from headway.data_contracts.drafting.leaking_inputs import NO_LEAKS, LeakingInputs
from headway.data_contracts.drafting.profile import ColumnProfile, Suspicion, is_key_name
from headway.data_contracts.drafting.text_shapes import KINDS
from headway.data_contracts.types import report_text

NULL_WHERE_NOT_UTF8 = ("num_chars", "max_line_chars", "text")
LEAK_QUESTION = "DECIDE: is it known when the model is asked? If not, keep it out of `shards.encoder`."
Line = tuple[str, str]
"""YAML, and the comment beside it."""


EARLIEST_YEAR, LATEST_YEAR = 1500, 2200
MOST_CODES = 4
"""Whole numbers of more values have an order, and the next one is no mistake: a range, not a set."""


def column_lines(
    column: ColumnProfile, *, is_text: bool, is_label: bool = False, leaks: LeakingInputs = NO_LEAKS
) -> Iterator[Line]:
    """The lines of one column, indented for `columns:`.

    Args:
        is_label: it is to be predicted: a value of its own would be a class that no model knows.
        leaks: inputs that alone tell the label.
    """
    yield f"  {scalar(column.name)}:", ""
    if named := leaks.named(column.name):
        yield "    ", f"LEAK{': it' if column.name in leaks.certain else '? It'} {named}. {LEAK_QUESTION}"
    if column.suspicions:
        yield "    ", _suspicion(column)
    yield f"    type: {scalar(column.type)}", ""
    if column.num_nulls and not (is_text and column.name in NULL_WHERE_NOT_UTF8):
        share = share_of(column.num_nulls, column.num_rows)
        yield "    nullable: true", f"{share} are null. DECIDE: delete this line if none should be"
    if is_text and column.name == "path":
        yield "    unique: true", "no two rows are the same file"
    elif column.is_unique and is_key_name(column.name):
        yield "    unique: true", "no value occurs twice. DECIDE: a key, or chance?"
    elif column.is_unique:
        yield "    ", "No value occurs twice, which may be chance: say `unique: true` if it tells rows apart."
    if not column.num_values:
        yield "    ", "Nothing but nulls was seen."
    elif not column.suspicions:
        yield from _constraints(column, is_text=is_text, is_label=is_label)


def _constraints(column: ColumnProfile, *, is_text: bool, is_label: bool) -> Iterator[Line]:
    if is_text and column.name == "is_utf8":
        yield "    in: [true]", "of the rows that remain; the rule below quarantines the others"
    elif column.is_partition:
        yield "    ", f"named by folders, such as {scalar(column.name)}=...; later ones may have other values"
    elif column.family == "bool":
        yield (
            "    ",
            f"only {scalar(column.values[0])} was seen" if len(column.values) == 1 else "true and false were seen",
        )
    elif column.values and (is_label or column.family != "integer" or len(column.values) <= MOST_CODES):
        yield f"    in: {scalar(list(column.values))}", f"all {len(column.values)} that occur. DECIDE: may others come?"
    elif column.family in ("integer", "float", "decimal"):
        yield from _range(column)
    elif column.family == "string":
        yield from _text(column)
    elif column.family == "list":
        yield from _list(column)
    elif column.family in ("date", "timestamp"):
        yield "    ", f"{report_text.moment(column.low)} to {report_text.moment(column.high)} were seen"


def _suspicion(column: ColumnProfile) -> str:
    kinds = ", ".join(f"{KINDS[each.kind]} ({_reason(each)})" for each in column.suspicions)
    seen = [each.kind for each in column.suspicions if each.num_seen]
    refuse = f"; `no_pii: {scalar(seen)}` refuses them" if seen else ""
    return (
        f"PERSONAL DATA? {scalar(column.name)} may hold {kinds}. DECIDE whether it may be trained on{refuse}. Nothing "
        "made from its values is written here."
    )


def _reason(suspicion: Suspicion) -> str:
    if not suspicion.num_seen:
        return "its name says so"
    return f"seen in {share_of(suspicion.num_seen, suspicion.num_looked_at)}"


def _range(column: ColumnProfile) -> Iterator[Line]:
    assert column.low is not None or column.num_not_finite
    if column.num_not_finite:
        share = share_of(column.num_not_finite, column.num_values)
        yield "    finite: false", f"{share} are NaN or infinite. DECIDE: delete this line to refuse them"
    if column.low is None or column.high is None:
        return
    if isinstance(column.low, int) and column.low >= EARLIEST_YEAR and column.high <= LATEST_YEAR:
        # Most likely years, which are not grouped by thousands.
        seen = f"{column.low} to {column.high} were seen"
    else:
        seen = f"{figure(column.low)} to {figure(column.high)} were seen"
    if column.num_not_finite:
        yield "    ", f"Otherwise {seen}; bounds would refuse NaN too, so none is drafted."
    elif column.is_unique:
        if column.low >= 0:
            yield "    min: 0", f"{seen}; no upper bound, since a key may grow"
    else:
        low, high = widened(column.low, column.high)
        yield f"    min: {scalar(low)}", f"{seen}; the margin is a tenth of that width,"
        yield f"    max: {scalar(high)}", "rounded outwards. DECIDE: what is possible at all?"


def _text(column: ColumnProfile) -> Iterator[Line]:
    if column.min_length is None or column.max_length is None:
        return
    if column.shape is not None:
        yield f"    pattern: {scalar(column.shape.pattern)}", f"every value is {column.shape.name}"
        if column.min_length == column.max_length:
            return
    seen = f"{_span(column.min_length, column.max_length)} characters were seen"
    if column.min_length:
        yield "    min_length: 1", "none is empty"
    yield f"    max_length: {longest(column.max_length)}", f"{seen}; the bound is twice that, rounded up"


def _list(column: ColumnProfile) -> Iterator[Line]:
    if column.min_length is None or column.max_length is None:
        return
    seen = f"{_span(column.min_length, column.max_length)} elements were seen"
    if column.min_length == column.max_length:
        yield f"    min_length: {column.min_length}", "every list has as many elements"
        yield f"    max_length: {column.max_length}", ""
    else:
        if column.min_length:
            yield "    min_length: 1", "none is empty"
        yield f"    max_length: {longest(column.max_length)}", f"{seen}; the bound is twice that, rounded up"
    if isinstance(column.low, int) and isinstance(column.high, int):
        low, high = widened(column.low, column.high)
        nullable = ", nullable: true" if column.num_null_elements else ""
        selected = f"    elements: {{min: {low}, max: {high}{nullable}}}"
        yield selected, f"{figure(column.low)} to {figure(column.high)} were seen. DECIDE: for tokens, vocabulary - 1"


def scalar(value: Any) -> str:
    """A value as YAML, on one line; what an editor would not show as itself is escaped."""
    plain = _dumped(value)
    return plain if plain.isprintable() else _dumped(value, style='"', allow_unicode=False)


def _dumped(value: Any, *, style: str | None = None, allow_unicode: bool = True) -> str:
    dumped = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, allow_unicode=allow_unicode, width=1 << 30
    )
    return str(dumped).removesuffix("\n").removesuffix("\n...")


def share_of(number: int, total: int) -> str:
    percent = 100 * number / total
    return f"{number:,} of {total:,} ({'under 0.1' if percent < 0.1 else f'{percent:.3g}'} %)"


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def figure(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
