"""The summary says what the new version is, and since when there is the champion that there is."""

from __future__ import annotations

import io

import pytest

from headway.flows.report.summary import RetrainSummary, champion_outcome, markdown, next_step
from headway.flows.report.terminal import Terminal, comparison_line, time_line


def summary(*, is_champion: bool, champion_version: str | None) -> RetrainSummary:
    return RetrainSummary(
        pipeline="nightly",
        workspace="/workspace",
        model="tiny",
        version="4",
        is_champion=is_champion,
        champion_version=champion_version,
        champion_since=None if champion_version is None else "2026-01-31T12:00:00+00:00",
        promoted=is_champion,
        reason="beats the bigram",
        metric="bits_per_token",
        value=1.5,
        low=1.4,
        high=1.6,
        other_metrics={},
        champion_value=None,
        baselines={"bigram": 2.0},
        registration="0" * 64,
        stages_found=[],
        stages_run=["launch"],
        reports={"contract": "/contract.html", "evaluation": "/evaluation.html", "card": "/card.md"},
        logs="/logs",
        wall_s=10.0,
        time_s={"launch": 9.0, "train.data": 1.0},
        unattributed_ratio=0.0,
    )


@pytest.mark.parametrize(
    ("is_champion", "champion_version", "message"),
    [
        (True, "4", "champion since 2026-01-31"),
        (False, "3", "challenger; version 3 is champion since 2026-01-31"),
        (False, None, "challenger"),
    ],
)
def test_the_standing_is_told_in_the_terminal_and_in_prefect_alike(is_champion, champion_version, message) -> None:
    made = summary(is_champion=is_champion, champion_version=champion_version)
    assert champion_outcome(made) == message
    assert f"## tiny version 4: {message}\n" in markdown(made)
    stream = io.StringIO()
    Terminal(stream).summary(made)
    lines = stream.getvalue().splitlines()
    assert f"tiny version 4: {message}" in lines


def test_weights_that_are_not_those_of_an_undisturbed_run_are_marked_in_the_terminal_and_in_prefect_alike() -> None:
    exact = summary(is_champion=True, champion_version="4")
    halved = exact.model_copy(update={"inexact": "micro-batch halved to 4 when memory ran out"})
    message = "not to the bit an undisturbed run: micro-batch halved to 4 when memory ran out"
    for made, is_marked in ((exact, False), (halved, True)):
        stream = io.StringIO()
        Terminal(stream).summary(made)
        assert (f"  {message}" in stream.getvalue().splitlines()) == (f"\n{message}\n" in markdown(made)) == is_marked


def test_where_the_time_went_is_one_line_with_what_took_longest_first() -> None:
    parts = {"train.sync": 1.0, "start": 5.0, "verify": 0.04, "shard": 0.5, "fit": 0.5, "launch": 1.5, "export": 1.46}
    spent = summary(is_champion=True, champion_version="1").model_copy(update={"time_s": parts})
    assert time_line(spent) == "10.0 s: start 50%, launch 15%, export 15%, train.sync 10%, shard 5%, the rest 5%"
    found = spent.model_copy(update={"time_s": {"start": 9.99}})
    assert time_line(found) == "10.0 s: start 100%"


def test_no_line_of_the_terminal_ends_in_blanks() -> None:
    stream = io.StringIO()
    Terminal(stream).summary(summary(is_champion=True, champion_version="4"))
    lines = stream.getvalue().splitlines()
    assert "  time       10.0 s: launch 90%, train.data 10%" in lines
    assert all(line == line.rstrip() for line in lines)


def test_a_first_version_that_did_not_win_says_what_to_try_next_and_another_does_not() -> None:
    stream = io.StringIO()
    Terminal(stream).summary(summary(is_champion=False, champion_version=None))
    assert "no champion yet" in stream.getvalue() and "then retrain nightly" in " ".join(stream.getvalue().split())
    for champion_version in ("1", "2"):
        stream = io.StringIO()
        Terminal(stream).summary(summary(is_champion=champion_version == "2", champion_version=champion_version))
        assert "  next" not in stream.getvalue()


def test_what_mends_just_what_was_refused_is_the_next_step_whoever_is_champion() -> None:
    remedy = "take `outcome` out of the inputs"
    for champion_version in (None, "3"):
        refused = summary(is_champion=False, champion_version=champion_version).model_copy(update={"remedy": remedy})
        assert next_step(refused) == f"{remedy}; then retrain nightly"


def test_large_figures_are_written_as_in_the_leaderboard() -> None:
    priced = summary(is_champion=True, champion_version="4").model_copy(
        update={"metric": "mean_squared_error", "value": 3409.5484, "low": 2500.25, "high": 4300.5}
    )
    assert "mean_squared_error 3,409.5 [2,500.2, 4,300.5]" in comparison_line(priced)
