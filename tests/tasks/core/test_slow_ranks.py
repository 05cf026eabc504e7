"""Who is slow stands in Prefect's UI while training goes on, and no run fails for the sake of a table."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import artifacts

from headway.tasks.core.artifacts import artifact_key
from headway.tasks.core.context import RunContext
from headway.tasks.core.slow_ranks import showing_slow_ranks

SLOW = {
    **{"attempt": 1, "rank": 3, "host": "b", "part": "forward", "excess_s": 0.25, "step_s": 1.0},
    **{"own_s": 0.5, "others_s": 0.25, "score": 9.0, "what": "rank 3 on b is slow: ..."},
}


def test_each_rank_that_is_named_is_a_row_with_what_it_costs_and_what_came_of_it(
    context: RunContext, shown: list[dict[str, Any]]
) -> None:
    with showing_slow_ranks(context):
        context.ledger.event("attempt.start")
        context.ledger.relay({"event": "rank.slow", **SLOW})
        context.ledger.event("rank.slow", **SLOW | {"rank": 0, "host": "a", "part": "data"})
        context.ledger.event("host.excluded", attempt=1, host="b", what="...")
    assert [len(each["table"]) for each in shown] == [1, 2, 2]
    row, other = shown[-1]["table"]
    assert (row["rank"], row["host"], row["slow in"]) == (3, "b", "forward")
    assert (row["takes it"], row["takes the others"], row["costs"]) == ("0.5 s", "0.25 s", "0.25 of 1 s a step")
    assert row["what came of it"].startswith("its host is left out") and other["what came of it"] == "reported"
    assert {each["key"] for each in shown} == {f"{artifact_key(context.pipeline)}-slow-ranks"}


def test_a_host_that_one_run_leaves_out_is_left_out_of_no_other(
    context: RunContext, shown: list[dict[str, Any]]
) -> None:
    context.at.run = "b"
    with showing_slow_ranks(context):
        for run in ({"run": "a"}, {}):
            context.ledger.event("rank.slow", **SLOW, **run)
        context.ledger.event("host.excluded", attempt=1, host="b", run="a", what="...")
    one, other = shown[-1]["table"]
    assert (one["run"], other["run"]) == ("a", "b"), "what names no run is of the one that is trained"
    assert one["what came of it"].startswith("its host is left out") and other["what came of it"] == "reported"


def test_nothing_is_shown_where_nobody_is_slow_nor_after_training(
    context: RunContext, shown: list[dict[str, Any]]
) -> None:
    with showing_slow_ranks(context):
        context.ledger.event("host.excluded", attempt=1, host="b")
    context.ledger.event("rank.slow", **SLOW)
    assert shown == []


def test_a_table_that_prefect_does_not_take_fails_nothing(
    context: RunContext, shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_fields: object) -> None:
        raise RuntimeError("no such server")

    monkeypatch.setattr(artifacts, "create_table_artifact", refuse)
    with showing_slow_ranks(context):
        context.ledger.event("rank.slow", **SLOW)
