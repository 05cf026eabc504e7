"""What `headway cost` prints, with prices and without."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headway.flows.accounts.cost import costs, total
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.config.profiles import PricesSpec
from headway.flows.console.console import plain_console
from headway.flows.show.cost import CostReport, print_cost
from tests.flows.accounts.lives import Life, numbered


@pytest.mark.parametrize(
    ("prices", "columns"),
    [
        (PricesSpec(), ["pipeline", "flow runs", "device-hours"]),
        (
            PricesSpec(device_hour_usd={"any": 36.0}),
            ["pipeline", "flow runs", "device-hours", "USD", "productive", "wasted", "USD a million targets"],
        ),
    ],
    ids=["without prices", "with prices"],
)
def test_columns_of_money_are_there_where_there_are_prices(
    tmp_path: Path, prices: PricesSpec, columns: list[str]
) -> None:
    life = Life(tmp_path)
    life.flow("a", 0.0, 30.0)
    life.attempt("a", 0.0, 30.0, numbered(1, 20, 2.0), world_size=4)
    list(settle(life.workspace))
    accounts = list(all_accounts(life.workspace))
    lines = costs(accounts, "pipeline", prices)
    report = CostReport(
        workspace="w", by="pipeline", since="", unpriced=[], lines=lines, total=total(lines, len(accounts))
    )
    shown = io.StringIO()
    print_cost(report, plain_console(shown))
    (header,) = (line for line in shown.getvalue().splitlines() if line.startswith("pipeline"))
    assert header.split("  ")[0] == columns[0] and [each for each in columns if each in header] == columns
    assert ("USD" in header) == ("USD" in columns)
    assert ("`--profile NAME`" in shown.getvalue()) == ("USD" not in columns)
