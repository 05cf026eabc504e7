"""A contract's own rules count what plain Python counts, whatever the values and the arguments."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from headway.data_contracts.engine.validation import validate
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.exact_checks import num_broken_sql
from headway.data_contracts.store.documents import ExpectationVerdict, Snapshot, StoredFile
from tests.data_contracts.local_rows import of_parquet

NUM_ROWS = 8
TEXTS = (
    *("a", "b", "", " ", "a\nb", "\\", "C:\\dir", "\\d", "100%", "a_b", "it's", '"q"', "%s", "{}", "$1", ":x", "'; --"),
    *("é", "☃", "٣", "\U0001f600", "\x00", "\t", "123-45", "NULL", "nan", "true"),
)
PATTERNS = (
    *(r"\d{3}-\d{2}", r"[A-Z]:\\\w+", r"\\", r"\\d", r"100%", r"a_b", r"it's", r'"q"', r"%s", r"\{\}", r"\$1", r":x"),
    *(r".*", r".", r"[^a]*", r"☃|é", r"a\nb", r"(?s)a.b", r"a|b|", r"(?i)A", r"'; --", r"[[:alpha:]]*"),
)
POSIX = {r"[[:alpha:]]*": r"[A-Za-z]*"}
INTEGERS = (0, 1, -1, 3, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 0.1, 0.3, -1.5, 1e300, 5e-324, math.inf, -math.inf, math.nan)
DECIMALS = (Decimal("0.10"), Decimal("0.30"), Decimal("-1.50"), Decimal("9999999999999999.99"))
MOMENTS = tuple(dt.datetime(2026, 1, 31) + dt.timedelta(hours=hours, microseconds=hours) for hours in (0, 6, 24, -24))
DAYS = tuple(moment.date() for moment in MOMENTS)
LISTS = ((), (1,), (1, 2, 3), (None,), (-1, None, 5))
COLUMNS: dict[str, tuple[str, tuple[Any, ...], pa.DataType]] = {
    "i": ("int64", INTEGERS, pa.int64()),
    "k": ("int32", (0, 1, 2), pa.int32()),
    "f": ("double", FLOATS, pa.float64()),
    "d": ("decimal128(18, 2)", DECIMALS, pa.decimal128(18, 2)),
    "b": ("bool", (True, False), pa.bool_()),
    "t": ("string", TEXTS, pa.string()),
    "c": ("string", ("x", "y'", "z\\"), pa.string()),
    "m": ("timestamp[us]", MOMENTS, pa.timestamp("us")),
    "y": ("date32[day]", DAYS, pa.date32()),
    "l": ("list<int64>", LISTS, pa.list_(pa.int64())),
}
Expected = tuple[bool, int | None]
"""Whether a rule holds, and how many rows break it; None: it speaks of no single row."""
Reference = Callable[[dict[str, list[Any]]], Expected]
Asked = tuple[str, dict[str, Any], Reference]
"""The list of the contract that the rule is in, the rule, and what Python says of it."""


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    num_rows = draw(st.sampled_from((1, NUM_ROWS, NUM_ROWS)))
    found = {}
    for name, (_, values, _) in COLUMNS.items():
        element = st.sampled_from(values) if draw(st.booleans()) else st.sampled_from((None, *values))
        found[name] = draw(st.lists(element, min_size=num_rows, max_size=num_rows))
    return found


def broken(column: str, holds: Callable[[Any], bool]) -> Reference:
    def counted(rows: dict[str, list[Any]]) -> Expected:
        number = sum(not holds(value) for value in rows[column] if value is not None)
        return number == 0, number

    return counted


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def is_within(low: Any, high: Any) -> Callable[[Any], bool]:
    """Python compares integers, doubles and decimals exactly; NaN is within nothing."""
    return lambda value: not is_nan(value) and (low is None or value >= low) and (high is None or value <= high)


@st.composite
def ranges(draw: st.DrawFn) -> Asked:
    name = draw(st.sampled_from("ifdmy"))
    choices: dict[str, Sequence[Any]] = {
        "i": (*INTEGERS, 0.5, -1.5, float(2**53)),
        "f": (*(value for value in FLOATS if math.isfinite(value)), 1, -2),
        "d": DECIMALS,
        "m": MOMENTS,
        "y": DAYS,
    }
    low, high = (draw(st.sampled_from((None, *choices[name]))) for _ in range(2))
    if low is None and high is None:
        low = choices[name][0]
    if low is not None and high is not None and low > high:
        low, high = high, low
    bounds = {key: value for key, value in (("min", low), ("max", high)) if value is not None}
    return (
        "rules",
        {"column": name, **{key: written(value) for key, value in bounds.items()}},
        broken(name, is_within(low, high)),
    )


def written(value: Any) -> Any:
    """As a contract's YAML has it."""
    return value if isinstance(value, int | float) else value.isoformat() if isinstance(value, dt.date) else str(value)


@st.composite
def sets(draw: st.DrawFn) -> Asked:
    name = draw(st.sampled_from("ifbtc"))
    values = [value for value in COLUMNS[name][1] if not (isinstance(value, float) and not math.isfinite(value))]
    chosen = draw(st.lists(st.sampled_from(values), min_size=1, max_size=5, unique=True))
    return "rules", {"column": name, "in": chosen}, broken(name, lambda value: value in chosen)


@st.composite
def patterns(draw: st.DrawFn) -> Asked:
    pattern = draw(st.sampled_from(PATTERNS))
    compiled = re.compile(POSIX.get(pattern, pattern), re.ASCII if "i" not in pattern[:4] else 0)
    return "rules", {"column": "t", "pattern": pattern}, broken("t", lambda value: bool(compiled.fullmatch(value)))


@st.composite
def lengths(draw: st.DrawFn) -> Asked:
    name, low, more = draw(st.sampled_from("tl")), draw(st.integers(0, 3)), draw(st.integers(0, 3))
    rule = {"column": name, "min_length": low, "max_length": low + more}
    return "rules", rule, broken(name, lambda value: low <= len(value) <= low + more)


@st.composite
def elements(draw: st.DrawFn) -> Asked:
    low, nullable = draw(st.sampled_from((-1, 0, 2))), draw(st.booleans())

    def holds(value: Any) -> bool:
        return all((nullable if each is None else low <= each <= 4) for each in value)

    return "rules", {"column": "l", "elements": {"min": low, "max": 4, "nullable": nullable}}, broken("l", holds)


@st.composite
def presence(draw: st.DrawFn) -> Asked:
    if draw(st.booleans()):
        return "rules", {"column": "f", "finite": True}, broken("f", math.isfinite)
    name = draw(st.sampled_from(tuple(COLUMNS)))

    def counted(rows: dict[str, list[Any]]) -> Expected:
        number = rows[name].count(None)
        return number == 0, number

    return "rules", {"column": name, "not_null": True}, counted


@st.composite
def keys(draw: st.DrawFn) -> Asked:
    names = draw(st.lists(st.sampled_from("ikdbtcmy"), min_size=1, max_size=3, unique=True))

    def counted(rows: dict[str, list[Any]]) -> Expected:
        found = [key for key in zip(*(rows[name] for name in names), strict=True) if None not in key]
        number = len(found) - len(set(found))
        return number == 0, number

    return "keys", {"columns": names}, counted


@st.composite
def orders(draw: st.DrawFn) -> Asked:
    name, strict, descending = draw(st.sampled_from("iktmy")), draw(st.booleans()), draw(st.booleans())

    def counted(rows: dict[str, list[Any]]) -> Expected:
        values = [value.encode() if isinstance(value, str) else value for value in rows[name] if value is not None]
        pairs = list(pairwise(values))
        wrong = [(b >= a if strict else b > a) if descending else (b <= a if strict else b < a) for a, b in pairs]
        return not any(wrong), sum(wrong)

    within = draw(st.sampled_from(("file", "all")))
    return "ordering", {"column": name, "strict": strict, "descending": descending, "within": within}, counted


@st.composite
def shares(draw: st.DrawFn) -> Asked:
    name, least, greatest = draw(st.sampled_from("kbct")), draw(st.sampled_from((0.1, 0.2, 0.25))), 0.5

    def evaluated(rows: dict[str, list[Any]]) -> Expected:
        counts = Counter(value for value in rows[name] if value is not None)
        total = sum(counts.values())
        return bool(total) and least <= min(counts.values()) / total and max(counts.values()) / total <= greatest, None

    return "balance", {"column": name, "min_share": least, "max_share": greatest}, evaluated


@st.composite
def statistics(draw: st.DrawFn) -> Asked:
    name, statistic = draw(st.sampled_from("ikf")), draw(st.sampled_from(("mean", "sum", "min", "max")))
    low = draw(st.sampled_from((-1, 0, 0.1, 1)))
    high = low + draw(st.sampled_from((0, 1, 1e6)))

    def evaluated(rows: dict[str, list[Any]]) -> Expected:
        values = [value for value in rows[name] if value is not None]
        figure = figure_of(statistic, values)
        return figure is not None and low <= figure <= high, None

    return "statistics", {"column": name, "statistic": statistic, "min": low, "max": high}, evaluated


def figure_of(statistic: str, values: list[Any]) -> Any:
    """Exact, then rounded once. NaN is the greatest value, and a part of every sum."""
    if not values:
        return None
    if statistic in ("min", "max"):
        numbers = [value for value in values if not is_nan(value)]
        if statistic == "max" and len(numbers) < len(values):
            return math.nan
        return (min if statistic == "min" else max)(numbers, default=math.nan)
    if not all(math.isfinite(value) for value in values):
        return math.fsum(value for value in values if not math.isfinite(value)) if one_sign(values) else math.nan
    total = sum((Fraction(value) for value in values), Fraction(0))
    total = total / len(values) if statistic == "mean" else total
    return float(total) if abs(total) < 2**1023 else math.copysign(math.inf, total)


def one_sign(values: list[Any]) -> bool:
    odd = [value for value in values if not math.isfinite(value)]
    return len({math.copysign(1, value) for value in odd}) == 1 and not any(is_nan(value) for value in odd)


@st.composite
def leaks(draw: st.DrawFn) -> Asked:
    names = draw(st.lists(st.sampled_from("iktb"), min_size=1, max_size=2, unique=True))

    def counted(rows: dict[str, list[Any]]) -> Expected:
        where: dict[tuple[Any, ...], set[Any]] = {}
        found = []
        for *key, split in zip(*(rows[name] for name in names), rows["c"], strict=True):
            if None not in key and split is not None:
                where.setdefault(tuple(key), set()).add(split)
                found.append(tuple(key))
        number = sum(len(where[key]) > 1 for key in found)
        return number == 0, number

    return "leakage", {"columns": names}, counted


RULES = st.one_of(
    ranges(), ranges(), sets(), sets(), patterns(), patterns(), lengths(), elements(), presence(), keys(), orders(),
    shares(), statistics(), statistics(), leaks(),
)  # fmt: skip


def verdicts(rows: dict[str, list[Any]], asked: Sequence[Asked], folder: Path) -> dict[str, ExpectationVerdict]:
    columns = {name: {"type": kind, "nullable": True, "finite": False} for name, (kind, _, _) in COLUMNS.items()}
    contract: dict[str, Any] = {"name": "any", "version": "1.0.0", "columns": columns, "splits": {"column": "c"}}
    for number, (where, rule, _) in enumerate(asked):
        contract.setdefault(where, []).append({"id": f"rule-{number}", "severity": "info", **rule})
    table = pa.table({name: pa.array(rows[name], kind) for name, (_, _, kind) in COLUMNS.items()})
    pq.write_table(table, folder / "rows.parquet", row_group_size=max(1, table.num_rows // 2))
    found = of_parquet(folder / "rows.parquet")
    snapshot = Snapshot(format="parquet", columns=dict(found.columns), num_rows=table.num_rows, files=found.files)
    stored = StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32)
    parsed = parse_contract(json.dumps(contract, ensure_ascii=False), where="any.yaml")
    receipt = validate(parsed, stored, snapshot, found, folder, quarantine_file=folder / "left-out.parquet")
    return {verdict.rule_id: verdict for verdict in receipt.verdicts}


def num_broken(verdict: ExpectationVerdict) -> int | None:
    """The number in "3 of 8 rows ...", 0 where all hold; None where the verdict says something else."""
    match = re.match(r"([\d,]+|none) of [\d,]+ rows?", verdict.observed)
    if match is not None:
        return 0 if match[1] == "none" else int(match[1].replace(",", ""))
    return 0 if verdict.observed.startswith("all ") else None


@pytest.mark.parametrize(
    ("kind", "arguments", "num_broken"),
    [
        ("one_of", {"values": (float(2**53),)}, 1),
        ("between", {"min": None, "max": float(2**53), "type": "int64"}, 1),
        ("between", {"min": float(2**53) + 2, "max": None, "type": "int64"}, 2),
        ("between", {"min": 0.5, "max": 1e300, "type": "int64"}, 0),
    ],
)
def test_a_whole_number_is_exact_though_it_is_written_as_a_double(
    kind: Any, arguments: dict[str, Any], num_broken: int
) -> None:
    check = Check(rule_id="x", description="x", severity="critical", kind=kind, column="i", arguments=arguments)
    rows = f"(VALUES ({2**53}::BIGINT), ({2**53 + 1}::BIGINT)) AS rows(i)"
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT {num_broken_sql(check)} FROM {rows}").fetchall() == [(num_broken,)]


@pytest.mark.parametrize("bounds", [{"min": 0.1, "max": 0.3}, {"min": 0.1, "max": None}, {"min": None, "max": 0.3}])
def test_a_bound_of_a_column_of_short_floats_is_the_value_that_is_written_like_it(bounds: dict[str, Any]) -> None:
    elements = {"type": "float", "is_float": True, "finite": True, "nullable": False}
    rows = "(VALUES (0.1::FLOAT, [0.1::FLOAT]), (0.2, [0.1, 0.3]), (0.3, [0.3]), (-1, [-1]), (9, [9])) AS rows(f, l)"
    for kind, column, arguments in (("between", "f", {"type": "float"}), ("elements", "l", elements)):
        check = Check(
            rule_id="x", description="x", severity="critical", kind=kind, column=column, arguments=bounds | arguments
        )
        with duckdb.connect() as connection:
            found = connection.execute(f"SELECT {num_broken_sql(check)} FROM {rows}").fetchall()
        assert found == [(sum(bound is not None for bound in bounds.values()),)]


@pytest.mark.parametrize(
    "name", ["headway_split_name", "headway_split_of_path", "split", "hashed", "suspects", "value_0"]
)
def test_whatever_a_column_is_called_it_says_of_no_row_which_split_it_is_in(name: str, tmp_path: Path) -> None:
    rows = {"of": ["x", "x", "y"], "k": [1, 2, 1], name: [1, 1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    found = of_parquet(tmp_path / "rows.parquet")
    contract = {
        "name": "any",
        "version": "1.0.0",
        "columns": {"of": {"type": "string"}, "k": {"type": "int64"}, name: {"type": "int64"}},
        "splits": {"column": "of"},
        "leakage": [{"id": "apart", "columns": ["k"]}],
    }
    receipt = validate(
        parse_contract(json.dumps(contract), where="any.yaml"),
        StoredFile(path="contract.yaml", size_bytes=1, sha256="ab" * 32),
        Snapshot(format="parquet", columns=dict(found.columns), num_rows=3, files=found.files),
        found,
        tmp_path,
        quarantine_file=tmp_path / "left-out.parquet",
    )
    assert receipt.verdicts[-1].observed == "2 of 3 rows are shared by two splits or more"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.6])
def test_a_row_of_no_split_leaks_into_none_and_dilutes_no_leak(share: float, tmp_path: Path) -> None:
    """Two of the four rows of a split have a value of the other's, and three rows are of no split."""
    values, splits = [1, 1, 2, 0, 1, 1, 1], ["x", "y'", "x", "y'", None, None, None]
    rows = {name: [None] * len(values) for name in COLUMNS} | {"k": values, "c": splits}
    rule = {"columns": ["k"], "max_failed_ratio": share}
    (verdict,) = [
        each
        for each in verdicts(rows, [("leakage", rule, lambda _: (True, 0))], tmp_path).values()
        if each.rule_id == "rule-0"
    ]
    assert (verdict.passed, verdict.observed) == (share >= 0.5, "2 of 4 rows are shared by two splits or more")


@seed(2026)
@settings(max_examples=2, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(rows=tables(), asked=st.lists(RULES, min_size=40, max_size=40))
def test_any_rule_over_any_values_is_judged_as_plain_python_judges_it(
    rows: dict[str, list[Any]], asked: list[Asked], tmp_path_factory: Any
) -> None:
    found = verdicts(rows, asked, tmp_path_factory.mktemp("rules"))
    differ = []
    for number, (_, rule, reference) in enumerate(asked):
        verdict, (passed, count) = found[f"rule-{number}"], reference(rows)
        if verdict.passed is not passed or (count is not None and num_broken(verdict) != count):
            differ.append((rule, passed, count, verdict.observed))
    assert differ == []
