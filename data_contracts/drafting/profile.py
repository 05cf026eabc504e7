"""A profile: what there is to know of each column before a person writes a contract. Out of core, by DuckDB.

Everything is exact except `num_distinct`, and what is looked for inside the texts of large data, where about
`MAX_LOOKED_AT` values are looked at; which ones follows from the values, so that equal rows give equal profiles.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb

from headway.data_contracts.drafting.text_shapes import SHAPES, Shape, named_kinds, suffix_shape
from headway.data_contracts.rules.pii import PATTERNS, holds_pii_sql
from headway.data_contracts.scans.exact_checks import one_value
from headway.data_contracts.scans.rows_database import ROWS, identifier, literal
from headway.data_contracts.types.type_families import Family, element_type, family, has_zone

Scalar = bool | int | float | str
Figures = dict[str, Any]

MAX_LOOKED_AT = 200_000
MAX_CHARS_LOOKED_AT = 10_000
MAX_VALUES = 20
"""More distinct values are a range or a text, not a set."""
MIN_ROWS_PER_VALUE: dict[str, int] = {"bool": 5, "string": 5, "integer": 20}
"""A number is sooner a measure that has not varied much yet than a category."""
MEASURES = re.compile(
    r"(^|_)(num|n|nb|count|counts|max|min|mean|avg|median|sum|total|size|len|length|width|height|depth|age|amount|price"
    r"|cost|quantity|qty|duration|bytes|chars|words|tokens|lines|rows|days|hours|minutes|seconds|ms|s|kg|km|percent)(_|$)"
)
"""Names of whole numbers that are measured or counted, however few values they have had."""
KEYS = re.compile(
    r"(^|_)(id|ids|key|uuid|guid|code|no|nr|number|num|ref|reference|name|path|file|url|uri|sku|isbn|hash|digest|sha\d*)(_|$)"
)
"""Names of columns that are there to tell rows apart."""
MAX_VALUE_CHARS = 64
MIN_ROWS_OF_KEY = 100
"""Of fewer rows, almost any column has each value once."""
MAX_KEY_CHARS = 256
COLUMNS_PER_SCAN = 32
COLUMNS_AS_THEY_ARE = 64
"""A table of no more is asked as it is; of a wider one, some columns at a time are copied and asked."""
MAX_COLUMNS_OF_PART, CELLS_OF_PART = 512, 1 << 26
"""Columns of such a copy, and about how many values it may hold."""
PART = "part_of_rows"
MAX_COLUMNS_OF_PAIRS = 5
NUMBER = r"\s*[+-]?([0-9]*[.,]?[0-9]+|[1-9][0-9]{0,2}([.,'][0-9]{3})+([.,][0-9]+)?)([eE][+-]?[0-9]+)?\s*"
"""However its marks are meant."""
MAX_STRAY_RATIO, MAX_STRAY_EXAMPLES = 0.1, 3
"""Of more values that are no numbers, a text is meant to be one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspicion:
    """Personal data of one kind: seen in values, or spoken of by the column's name (`num_seen` is 0)."""

    kind: str
    num_seen: int
    num_looked_at: int


class StrayValues(NamedTuple):
    """Values of a text column whose others are all numbers: often mistakes, which keep it from being one of numbers."""

    num_rows: int
    examples: tuple[str, ...]
    """The commonest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnProfile:
    name: str
    type: str
    """Arrow type."""
    num_rows: int
    num_nulls: int
    num_distinct: int
    """About, to a few percent; exact where `values` are given."""
    is_unique: bool
    """Exactly: no value occurs twice. Only looked at where a column may be a key."""
    low: float | int | None
    """Least finite value of a number or of a list's elements; seconds since 1970 of a time."""
    high: float | int | None
    num_not_finite: int
    min_length: int | None
    """Characters of a text, elements of a list."""
    max_length: int | None
    num_null_elements: int
    values: tuple[Scalar, ...]
    """All values of a column that has few, in order; never those of a column under suspicion."""
    shape: Shape | None
    """What every single text looks like."""
    suspicions: tuple[Suspicion, ...]
    stray: StrayValues | None = None
    """Of a text that is nearly a number; None also where it may be personal."""
    is_partition: bool = False
    """Whether folders such as `day=1` give its values: tomorrow's is another."""

    @property
    def family(self) -> Family:
        return family(self.type)

    @property
    def num_values(self) -> int:
        return self.num_rows - self.num_nulls


@dataclass(frozen=True, kw_only=True, slots=True)
class TableProfile:
    num_rows: int
    columns: tuple[ColumnProfile, ...]
    key: tuple[str, ...]
    """Columns whose values only together name a row; empty when one column does, or none was found."""
    num_repeated: int = 0
    """Rows that are equal to an earlier one in all columns, rows with a null aside; 0 also where nobody looked."""


def profile_rows(
    connection: duckdb.DuckDBPyConnection,
    schema: Mapping[str, str],
    select: Callable[[Sequence[str]], str] | None = None,
) -> TableProfile:
    """Profile the view of rows.

    Args:
        schema: column name to Arrow type; columns of the view that are not named here are passed over.
        select: the SQL that reads some columns of the view and looks at no other, where there is a quicker one than to
            select them from it.
    """
    num_rows = int(one_value(connection, f"SELECT count(*) FROM {ROWS}"))
    is_narrow = len(schema) <= COLUMNS_AS_THEY_ARE
    columns: list[ColumnProfile] = []
    for names in _parts(list(schema), num_rows):
        with _part(connection, names, select, is_whole=is_narrow) as part:
            for start in range(0, len(names), COLUMNS_PER_SCAN):
                some = {name: schema[name] for name in names[start : start + COLUMNS_PER_SCAN]}
                figures = _scan(part, some)
                values = _few_values(part, some, figures)
                columns += [_column(part, name, kind, figures[name], values[name]) for name, kind in some.items()]
    candidates = _key_candidates(columns)
    key: tuple[str, ...] = ()
    if candidates:
        names = [column.name for column in candidates]
        with _part(connection, names, select, is_whole=is_narrow) as part:
            key = _compound_key(part, candidates, list(schema))
    num_repeated = 0
    if not key and _may_repeat(columns):
        with _part(connection, list(schema), select, is_whole=is_narrow) as part:
            num_repeated = _num_repeated(part, list(schema))
        # Where most rows repeat, few values make up all of them, and that is no mistake.
        num_repeated = num_repeated if num_repeated <= num_rows // 2 else 0
    return TableProfile(num_rows=num_rows, columns=tuple(columns), key=key, num_repeated=num_repeated)


class _Part(NamedTuple):
    """Some columns of the rows, to be asked about one by one."""

    connection: duckdb.DuckDBPyConnection
    rows: str


def _parts(names: Sequence[str], num_rows: int) -> list[Sequence[str]]:
    if len(names) <= COLUMNS_AS_THEY_ARE:
        return [names]
    width = max(COLUMNS_PER_SCAN, min(MAX_COLUMNS_OF_PART, CELLS_OF_PART // max(1, num_rows)))
    return [names[start : start + width] for start in range(0, len(names), width)]


@contextlib.contextmanager
def _part(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    select: Callable[[Sequence[str]], str] | None,
    *,
    is_whole: bool,
) -> Iterator[_Part]:
    """The view itself where it is narrow; of a wide one a copy of some columns: a question about one costs as much as
    the table that it is put to has columns."""
    if is_whole:
        yield _Part(connection, ROWS)
        return
    sql = f"SELECT {', '.join(identifier(name) for name in names)} FROM {ROWS}" if select is None else select(names)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {PART} AS {sql}")
    try:
        yield _Part(connection, PART)
    finally:
        connection.execute(f"DROP TABLE {PART}")


def _scan(part: _Part, schema: Mapping[str, str]) -> dict[str, Figures]:
    """The figures of some columns in one pass."""
    selected = [(name, *each) for name, kind in schema.items() for each in _aggregates(identifier(name), kind).items()]
    row = part.connection.execute(f"SELECT {', '.join(sql for _, _, sql in selected)} FROM {part.rows}").fetchone()
    assert row is not None
    found: dict[str, Figures] = {name: {} for name in schema}
    for (name, figure, _), value in zip(selected, row, strict=True):
        found[name][figure] = value
    return found


def _aggregates(column: str, arrow_type: str) -> dict[str, str]:
    """Name of a figure to the SQL that finds it."""
    selected = {"num_rows": "count(*)", "num_values": f"count({column})"}
    kind = family(arrow_type)
    if kind == "list":
        lengths = {
            "min_length": f"min(len({column}))",
            "max_length": f"max(len({column}))",
            "num_null_elements": f"sum(len({column}) - list_count({column}))",
        }
        is_numeric = family(element_type(arrow_type)) in ("integer", "float")
        bounds = {"low": f"min(list_min({column}))", "high": f"max(list_max({column}))"} if is_numeric else {}
        return selected | lengths | bounds
    selected["num_distinct"] = f"approx_count_distinct({column})"
    if kind == "integer":
        return selected | {"low": f"min({column})", "high": f"max({column})"}
    if kind in ("float", "decimal"):
        finite = f"FILTER (WHERE isfinite({column}::DOUBLE))"
        return selected | {
            "low": f"min({column}::DOUBLE) {finite}",
            "high": f"max({column}::DOUBLE) {finite}",
            "num_finite": f"count({column}) {finite}",
        }
    if kind in ("date", "timestamp"):
        moment = "TIMESTAMPTZ" if has_zone(arrow_type) else "TIMESTAMP"
        # A date may lie beyond all moments.
        moments = ((each, f"TRY_CAST({f}({column}) AS {moment})") for each, f in (("low", "min"), ("high", "max")))
        return selected | {each: f"epoch({sql})" for each, sql in moments}
    if kind == "string":
        return selected | {"min_length": f"min(length({column}))", "max_length": f"max(length({column}))"}
    return selected


def _column(part: _Part, name: str, arrow_type: str, figures: Figures, values: tuple[Scalar, ...]) -> ColumnProfile:
    kind, num_values = family(arrow_type), int(figures["num_values"])
    shape, suspicions = None, tuple(Suspicion(kind=each, num_seen=0, num_looked_at=0) for each in named_kinds(name))
    stray: StrayValues | None = None
    if kind == "string" and num_values:
        shape, stray, seen = _look_at_texts(part, name, num_values, int(figures["max_length"]))
        found = {each.kind for each in seen}
        suspicions = (*seen, *(each for each in suspicions if each.kind not in found))
    values = () if suspicions else values
    return ColumnProfile(
        name=name,
        type=arrow_type,
        num_rows=int(figures["num_rows"]),
        num_nulls=int(figures["num_rows"]) - num_values,
        num_distinct=len(values) or int(figures.get("num_distinct", 0)),
        is_unique=not values and _may_be_key(kind, figures) and _is_unique(part, (name,)),
        low=figures.get("low"),
        high=figures.get("high"),
        num_not_finite=num_values - int(figures.get("num_finite", num_values)),
        min_length=figures.get("min_length"),
        max_length=figures.get("max_length"),
        num_null_elements=int(figures.get("num_null_elements") or 0),
        values=values,
        shape=None if suspicions else shape,
        suspicions=suspicions,
        stray=None if suspicions else stray,
    )


def _few_values(
    part: _Part, schema: Mapping[str, str], figures: Mapping[str, Figures]
) -> dict[str, tuple[Scalar, ...]]:
    """All values, in order, of each column that has few; in one pass."""
    selected = [name for name, kind in schema.items() if _may_have_few(name, family(kind), figures[name])]
    lists = (
        f"list_sort(list(DISTINCT {identifier(name)}) FILTER ({identifier(name)} IS NOT NULL))" for name in selected
    )
    row = part.connection.execute(f"SELECT {', '.join(lists)} FROM {part.rows}").fetchone() if selected else ()
    assert row is not None
    found: dict[str, tuple[Scalar, ...]] = dict.fromkeys(schema, ())
    for name, values in zip(selected, row, strict=True):
        least = MIN_ROWS_PER_VALUE[family(schema[name])] * len(values)
        if len(values) <= MAX_VALUES and figures[name]["num_values"] >= least:
            found[name] = tuple(values)
    return found


def _may_have_few(name: str, kind: Family, figures: Figures) -> bool:
    is_countable = {
        "bool": True,
        "integer": not _is_measure(name),
        "string": (figures.get("max_length") or 0) <= MAX_VALUE_CHARS,
    }.get(kind, False)
    # The count is approximate, so a few more are let through and counted.
    return is_countable and 0 < figures["num_distinct"] <= 2 * MAX_VALUES


def _is_measure(name: str) -> bool:
    return MEASURES.search(_plain(name)) is not None


def is_key_name(name: str) -> bool:
    """Whether a column that tells rows apart is called as if it were meant to."""
    return KEYS.search(_plain(name)) is not None


def _plain(name: str) -> str:
    """`orderId` and `order-id` are `order_id`."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _may_be_key(kind: Family, figures: Figures) -> bool:
    return (
        kind in ("integer", "string", "binary")
        and figures["num_values"] >= MIN_ROWS_OF_KEY
        and figures["num_distinct"] >= 0.8 * figures["num_values"]
        and (figures.get("max_length") or 0) <= MAX_KEY_CHARS
    )


def _is_unique(part: _Part, names: Sequence[str]) -> bool:
    """Whether the values of these columns together never occur twice, rows with a null aside."""
    columns = [identifier(name) for name in names]
    present = " AND ".join(f"{column} IS NOT NULL" for column in columns)
    # Digests take bounded room whatever the values; two that collide can only make a key look like none.
    twice = f"SELECT 1 FROM {part.rows} WHERE {present} GROUP BY hash({', '.join(columns)}) HAVING count(*) > 1 LIMIT 1"
    return int(one_value(part.connection, f"SELECT count(*) FROM ({twice})")) == 0


def _key_candidates(columns: Sequence[ColumnProfile]) -> list[ColumnProfile]:
    """Columns of which two may name a row together, those with the most values first."""
    if any(column.is_unique for column in columns) or not columns or columns[0].num_rows < MIN_ROWS_OF_KEY:
        return []
    whole = [
        column
        for column in columns
        if column.family in ("integer", "string", "date", "timestamp")
        and column.num_nulls == 0
        and column.num_distinct > 1
        and (column.max_length or 0) <= MAX_KEY_CHARS
    ]
    return sorted(whole, key=lambda column: -column.num_distinct)[:MAX_COLUMNS_OF_PAIRS]


def _may_repeat(columns: Sequence[ColumnProfile]) -> bool:
    """Whether whole rows are looked at for equal ones: those of plain values, in a table that a person takes in."""
    is_plain = all(column.family not in ("list", "binary") for column in columns)
    return is_plain and 1 < len(columns) <= COLUMNS_AS_THEY_ARE and not any(column.is_unique for column in columns)


def _num_repeated(part: _Part, names: Sequence[str]) -> int:
    columns = [identifier(name) for name in names]
    present = " AND ".join(f"{column} IS NOT NULL" for column in columns)
    rows = f"SELECT hash({', '.join(columns)}) AS row FROM {part.rows} WHERE {present}"
    return int(one_value(part.connection, f"SELECT count(*) - count(DISTINCT row) FROM ({rows})"))


def _compound_key(part: _Part, candidates: Sequence[ColumnProfile], names: Sequence[str]) -> tuple[str, ...]:
    """The first pair of columns that names a row, in the order of all names."""
    for first, second in itertools.combinations(candidates, 2):
        is_enough = first.num_distinct * second.num_distinct >= first.num_rows
        if is_enough and _is_unique(part, (first.name, second.name)):
            return tuple(name for name in names if name in (first.name, second.name))
    return ()


def _look_at_texts(
    part: _Part, name: str, num_values: int, max_length: int
) -> tuple[Shape | None, StrayValues | None, tuple[Suspicion, ...]]:
    column, every = identifier(name), max(1, num_values // MAX_LOOKED_AT)
    text = column if max_length <= MAX_CHARS_LOOKED_AT else f"left({column}, {MAX_CHARS_LOOKED_AT})"
    personal = [f"count(*) FILTER ({holds_pii_sql(text, kind)})" for kind in PATTERNS]
    shapes = [f"coalesce(bool_and(regexp_full_match({text}, {literal(shape.pattern)})), false)" for shape in SHAPES]
    suffix = rf"regexp_extract({text}, '\.[a-z][a-z0-9]{{0,4}}$')"
    row = part.connection.execute(
        f"SELECT count(*), count(*) FILTER (regexp_full_match({text}, {literal(NUMBER)})), "
        f"min({suffix}), max({suffix}), {', '.join([*personal, *shapes])} FROM {part.rows} "
        f"WHERE {column} IS NOT NULL AND hash({column}) % {every} = 0"
    ).fetchone()
    assert row is not None
    num_looked_at, num_numbers, first_suffix, last_suffix, *rest = row
    suspicions = tuple(
        Suspicion(kind=kind, num_seen=num_seen, num_looked_at=num_looked_at)
        for kind, num_seen in zip(PATTERNS, rest, strict=False)
        if num_seen
    )
    likely = [shape for shape, is_held in zip(SHAPES, rest[len(PATTERNS) :], strict=True) if is_held]
    if first_suffix and first_suffix == last_suffix:
        likely.append(suffix_shape(first_suffix))
    certain = (shape for shape in likely if max_length <= MAX_KEY_CHARS and _all_have(part, column, shape))
    is_nearly_number = (1 - MAX_STRAY_RATIO) * num_looked_at <= num_numbers < num_looked_at
    return next(certain, None), _stray(part, column) if is_nearly_number else None, suspicions


def _stray(part: _Part, column: str) -> StrayValues:
    rows = part.connection.execute(
        f"SELECT left({column}, {MAX_VALUE_CHARS}), count(*), sum(count(*)) OVER () FROM {part.rows} WHERE {column} IS "
        f"NOT NULL AND NOT regexp_full_match({column}, {literal(NUMBER)}) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT "
        f"{MAX_STRAY_EXAMPLES}"
    ).fetchall()
    return StrayValues(num_rows=int(rows[0][2]), examples=tuple(text for text, _, _ in rows))


def _all_have(part: _Part, column: str, shape: Shape) -> bool:
    has = f"regexp_full_match({column}, {literal(shape.pattern)})"
    return bool(one_value(part.connection, f"SELECT coalesce(bool_and({has}), false) FROM {part.rows}"))
