from __future__ import annotations

import json

import pytest

from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.scans.split_sql import check_split_sql
from headway.data_contracts.store.errors import ConfigError

TEXT = """
name: events
version: 1.0.0
columns: {user: {type: string}, at: {type: 'timestamp[us, tz=UTC]'}, tokens: {type: 'list<int32>'}}
leakage: [{id: apart, columns: [user]}]
"""


def check(sql: str) -> None:
    check_split_sql(
        parse_contract(f"{TEXT}splits: {{sql: {json.dumps(sql)}}}", where="events.yaml"), where="events.yaml"
    )


@pytest.mark.parametrize(
    "sql",
    ["headway_split(user)", "CASE WHEN \"at\" < TIMESTAMPTZ '2026-01-01' THEN 1 ELSE 2 END", "len(tokens) % 2 = 0"],
)
def test_an_expression_over_the_columns_is_taken(sql: str) -> None:
    check(sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("headway_split(usr)", 'Referenced column "usr" not found'),
        ("headway_splits(user)", "headway_splits does not exist"),
        ("CASE WHEN user = 'a' THEN 'train'", "syntax error"),
        ("max(user)", "GROUP BY|aggregate"),
        ("user), (SELECT 1", "more than one value"),
        ("user) FROM shape; SELECT (1", "more than one statement"),
        ("(SELECT content FROM read_text('/etc/passwd'))", "disabled"),
        ("1 -- the rest", "syntax error"),
    ],
)
def test_anything_else_is_refused_before_the_data_are_looked_at(sql: str, reason: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"(?s)events.yaml: splits.sql gives no split for a row: .*({reason}).*over user, at"
    ):
        check(sql)


def test_a_contract_without_sql_has_nothing_to_check() -> None:
    check_split_sql(parse_contract(f"{TEXT}splits: {{column: user}}", where="a"), where="a")
    check_split_sql(parse_contract(TEXT, where="a"), where="a")
